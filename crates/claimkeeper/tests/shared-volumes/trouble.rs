//! What goes wrong meanwhile, and how often each of it.

use std::time::Duration;

use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use testbed::storageos::{Fault, Route, StorageOs};

/// What goes wrong during one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    /// The volumes of one namespace cannot be listed.
    Errors,
    /// No namespace can be.
    NoNamespaces,
    /// One list never comes.
    Silence,
    /// Lists come when they are no longer true.
    LateLists,
    /// Lists break off, or mean nothing.
    BrokenLists,
    /// A list shows nothing, and what is asked for each of its volumes is answered late.
    EmptyList,
    /// All tokens are good for nothing.
    ExpiredTokens,
    /// Addresses are not published any more, and whoever publishes them is told that somebody else wrote in between.
    StaleWrites,
    /// The same, but they are published without a word.
    LostAnswers,
    /// Somebody deletes Services.
    DeletedServices,
    /// The operator, or the one that leads, is killed.
    KilledOperator,
    /// The one that leads stands still until another one does.
    FrozenLeader,
    /// The API server is killed.
    KilledApiServer,
    /// The API server stands still for a while.
    FrozenApiServer,
}

/// So often each, in any order.
pub(crate) fn shuffled(troubles: &[(Trouble, usize)], random: &mut StdRng) -> Vec<Trouble> {
    let mut all: Vec<Trouble> = troubles.iter().flat_map(|(trouble, times)| vec![*trouble; *times]).collect();
    all.shuffle(random);
    all
}

impl Trouble {
    /// What happens to the answers of StorageOS, in one namespace or in all.
    pub(crate) fn of_storageos(self, server: &StorageOs, namespace: &str, random: &mut StdRng) {
        let lists = |fault: Fault, times: u32| {
            server.fault(fault.on(Route::Volumes).namespace(namespace).times(times));
        };
        match self {
            Self::Errors => lists(Fault::status(500), random.random_range(1..=6)),
            Self::NoNamespaces => drop(server.fault(Fault::status(503).on(Route::Namespaces).times(2))),
            Self::Silence => lists(Fault::hang(), 1),
            Self::LateLists => {
                server.fault(Fault::hold(Duration::from_millis(700)).on(Route::Volumes).times(6));
            }
            Self::BrokenLists => {
                lists(Fault::reset(), 1);
                lists(Fault::truncated_json(), 1);
                lists(Fault::broken_body(), 1);
            }
            Self::EmptyList => {
                lists(Fault::body("[]"), 2);
                server.fault(Fault::hold(Duration::from_millis(900)).on(Route::Volume).times(30));
            }
            Self::ExpiredTokens => server.expire_tokens(),
            Self::StaleWrites => drop(server.fault(Fault::status(412).on(Route::MountEndpoint).times(4))),
            Self::LostAnswers => drop(server.fault(Fault::lose_answer().on(Route::MountEndpoint).times(4))),
            _ => {}
        }
    }
}
