//! What every replica does: look at the Secret and at the configurations, and serve what these accept.

use std::time::Duration;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{api::DynamicObject, runtime::watcher};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    SelfManaged,
    configurations::Configuration,
    decision::{Choice, LONGEST_WAIT, change_over},
    secret::Stored,
    watching::watch,
    x509::{Authority, Leaf},
};
use crate::trouble::{Trouble, causes};

/// What a replica serves, and who vouches for it.
#[derive(Clone)]
pub(super) struct Serving {
    leaf: Leaf,
    pub(super) authority: Option<Authority>,
}

/// What a watch has told.
enum Told {
    Secret(Option<Box<Secret>>),
    Configuration(usize, Option<Box<DynamicObject>>),
    Broken(watcher::Error),
}

/// What a watch has told so far about its object.
enum Seen<T> {
    NotYet,
    Absent,
    Present(T),
}

impl<T> Seen<T> {
    fn of(object: Option<T>) -> Self {
        object.map_or(Self::Absent, Self::Present)
    }

    fn present(&self) -> Option<&T> {
        match self {
            Self::Present(object) => Some(object),
            Self::NotYet | Self::Absent => None,
        }
    }

    fn is_known(&self) -> bool {
        !matches!(self, Self::NotYet)
    }
}

/// What all watches have told.
struct View {
    secret: Seen<Stored>,
    configurations: Vec<Seen<Configuration>>,
    /// Since when the configurations are as they are.
    unchanged_since: Instant,
}

impl View {
    fn new(configurations: usize) -> Self {
        let configurations = (0..configurations).map(|_| Seen::NotYet).collect();
        Self { secret: Seen::NotYet, configurations, unchanged_since: Instant::now() }
    }

    fn set_configuration(&mut self, place: usize, configuration: Option<Configuration>) {
        let Some(known) = self.configurations.get_mut(place) else { return };
        let revision = |seen: &Seen<Configuration>| seen.present().map(|seen| seen.revision.clone());
        let before = std::mem::replace(known, Seen::of(configuration));
        if !before.is_known() || revision(&before) != revision(known) {
            self.unchanged_since = Instant::now();
        }
    }

    fn existing(&self) -> impl Iterator<Item = &Configuration> {
        self.configurations.iter().filter_map(Seen::present)
    }

    fn is_complete(&self) -> bool {
        self.secret.is_known() && self.configurations.iter().all(Seen::is_known)
    }

    fn accepts(&self, leaf: &Leaf) -> bool {
        self.existing().all(|configuration| configuration.verifies(leaf))
    }

    fn authority_of(&self, leaf: &Leaf) -> Option<Authority> {
        let stored = self.secret.present().into_iter().flat_map(|stored| stored.authorities.iter().cloned());
        let mut known = stored.chain(self.existing().flat_map(Configuration::authorities));
        known.find(|authority| authority.vouches_for(leaf))
    }
}

impl SelfManaged {
    /// Serves the certificate; runs until it is dropped, whoever keeps the certificates.
    pub async fn serve(&self) {
        let mut view = View::new(self.settings.configurations.len());
        let mut told = self.watches();
        let mut trouble = Trouble::default();
        loop {
            let again = self.choose(&view);
            tokio::select! {
                Some(news) = told.next() => {
                    if let Told::Broken(error) = &news {
                        self.metrics.failed("watch");
                        let error = causes(error);
                        if trouble.begins(&error) {
                            warn!(error, "the webhook's certificate cannot be watched; what is served stays as it is");
                        }
                    } else if trouble.ends() {
                        info!("the webhook's certificate is watched again");
                    }
                    self.take_in(news, &mut view);
                    self.changed.notify_one();
                }
                () = sleep(again) => {}
            }
        }
    }

    fn watches(&self) -> BoxStream<'static, Told> {
        let secret = watch(self.secrets(&self.reader), &self.settings.secret);
        let secret = secret.map(|seen| seen.map_or_else(Told::Broken, |seen| Told::Secret(seen.map(Box::new)))).boxed();
        let configurations = self.settings.configurations.iter().enumerate().map(|(place, name)| {
            let seen = watch(name.api(self.reader.clone()), name.name());
            let told = move |seen: Option<DynamicObject>| Told::Configuration(place, seen.map(Box::new));
            seen.map(move |seen| seen.map_or_else(Told::Broken, told)).boxed()
        });
        stream::select_all(configurations.chain([secret])).boxed()
    }

    fn take_in(&self, told: Told, view: &mut View) {
        match told {
            Told::Secret(secret) => view.secret = Seen::of(secret.map(|secret| Stored::read(&secret))),
            Told::Configuration(place, seen) => {
                view.set_configuration(place, seen.map(|seen| Configuration::read(&seen, &self.callee)));
            }
            Told::Broken(_) => {}
        }
    }

    /// Changes over if it is time, and returns when to look again.
    fn choose(&self, view: &View) -> Duration {
        let now = Timestamp::now();
        let mut serving = self.serving.lock();
        let mut again = LONGEST_WAIT;
        let stored = view.secret.present().and_then(|stored| stored.leaf.as_ref());
        let other = stored.filter(|leaf| serving.as_ref().is_none_or(|serving| serving.leaf.id != leaf.id));
        if let Some(leaf) = other {
            let good = |serving: &Serving| serving.leaf.validity.holds(now) && view.accepts(&serving.leaf);
            let choice = Choice {
                good: serving.as_ref().is_some_and(good),
                verified_for: view.accepts(leaf).then(|| view.unchanged_since.elapsed()),
                settle: self.settings.settle,
            };
            match change_over(choice) {
                Some(Duration::ZERO) => *serving = Some(self.start_serving(leaf, view)),
                Some(wait) => again = wait,
                None => {}
            }
        }
        if let Some(serving) = serving.as_mut().filter(|serving| serving.authority.is_none()) {
            serving.authority = view.authority_of(&serving.leaf);
        }
        let accepted = serving.as_ref().is_some_and(|serving| view.accepts(&serving.leaf));
        if accepted && view.is_complete() {
            self.parts.ready.open();
        } else {
            self.parts.ready.close();
        }
        again
    }

    fn start_serving(&self, leaf: &Leaf, view: &View) -> Serving {
        let authority = view.authority_of(leaf);
        self.parts.served.replace(leaf.key.as_ref().clone(), leaf.validity.until);
        self.metrics.tell_expiry(leaf.validity.until, authority.as_ref().map(|authority| authority.validity.until));
        info!(until = %leaf.validity.until, names = ?leaf.names, "a new certificate of the webhook is served");
        Serving { leaf: leaf.clone(), authority }
    }
}
