//! What happens in the control plane while a test looks elsewhere: steps that wait for a time or for requests.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Route, Store};

type Action = Box<dyn FnOnce(&Store) + Send>;

enum When {
    After(Duration),
    Answered { route: Route, times: u32 },
}

/// Steps, one after the other.
///
/// ```no_run
/// # use std::time::Duration;
/// # use testbed::storageos::{Endpoint, Route, Script, StorageOs, Volume};
/// # async fn test() -> anyhow::Result<()> {
/// let server = StorageOs::start().await?;
/// let id = server.add_volume(Volume::shared("team", "data", "pvc-1").at("10.0.0.1:25705"));
/// let (down, up) = (id.clone(), id);
/// server.run(
///     Script::default()
///         .after(Duration::from_secs(1), move |store| drop(store.failover(&down, Endpoint::Null)))
///         .answered(Route::Volumes, 2, move |store| drop(store.failover(&up, "10.0.0.2:25705"))),
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Script {
    steps: VecDeque<(When, Action)>,
}

impl Script {
    /// A step so long after the one before it, or after the start.
    #[must_use]
    pub fn after(self, pause: Duration, action: impl FnOnce(&Store) + Send + 'static) -> Self {
        self.step(When::After(pause), action)
    }

    /// A step when so many requests of a kind have been answered since the one before it, however they were answered. It is
    /// taken before the last of these answers is sent, so whoever gets it finds the step taken.
    #[must_use]
    pub fn answered(self, route: Route, times: u32, action: impl FnOnce(&Store) + Send + 'static) -> Self {
        self.step(When::Answered { route, times: times.max(1) }, action)
    }

    fn step(mut self, when: When, action: impl FnOnce(&Store) + Send + 'static) -> Self {
        self.steps.push_back((when, Box::new(action)));
        self
    }

    pub(super) fn start(self) -> Pending {
        Pending { steps: self.steps, since: Instant::now(), answered: 0 }
    }
}

/// What is left of a script.
pub(super) struct Pending {
    steps: VecDeque<(When, Action)>,
    /// When the last step was.
    since: Instant,
    /// How many of the awaited requests have been answered since.
    answered: u32,
}

impl Pending {
    pub(super) fn is_over(&self) -> bool {
        self.steps.is_empty()
    }

    /// Counts an answer, if one is given, and takes the next step if it is due.
    fn due(&mut self, answer: Option<Route>) -> Option<Action> {
        let is_due = match self.steps.front()?.0 {
            When::After(pause) => self.since.elapsed() >= pause,
            When::Answered { route, times } => {
                self.answered += u32::from(answer == Some(route));
                self.answered >= times
            }
        };
        if !is_due {
            return None;
        }
        (self.since, self.answered) = (Instant::now(), 0);
        self.steps.pop_front().map(|(_, action)| action)
    }
}

impl Store {
    /// Takes the steps that are due, of all scripts.
    pub(super) fn take_steps(&self, mut answer: Option<Route>) {
        loop {
            // An action may start another script, so none runs while these are locked.
            let mut scripts = self.scripts.lock();
            let due = scripts.iter_mut().filter_map(|script| script.due(answer)).collect::<Vec<_>>();
            scripts.retain(|script| !script.is_over());
            drop(scripts);
            if due.is_empty() {
                return;
            }
            for action in due {
                action(self);
            }
            // Steps that wait for no time follow at once, but the answer counts once.
            answer = None;
        }
    }
}
