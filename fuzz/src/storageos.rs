//! What the API of StorageOS tells of volumes, and the endpoints in it, which end up where the kernel of every node sends packets.
//! The rules are said here once more, and differently.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::Value;

// The decoder's own files, with just what they need of others around them.
extern crate self as cluster;
extern crate self as platform;
extern crate self as tokio;
pub mod queue {
    pub trait Key {
        fn tenant(&self) -> &str;
    }
}
pub mod time {
    pub use std::time::Instant;
}
#[path = "../../crates/cluster/src/key.rs"]
pub mod key;
pub use key::ObjectKey;
#[allow(dead_code)] // the parts that tell people
#[path = "../../crates/shared-volumes/src/endpoint.rs"]
mod endpoint;
#[allow(dead_code)] // the parts that ask and publish
#[path = "../../crates/shared-volumes/src/source.rs"]
mod source;
#[allow(dead_code)] // what else is sent
#[path = "../../crates/shared-volumes/src/storageos/wire.rs"]
mod wire;

/// In place of what fetches answers.
mod client {
    use serde::de::DeserializeOwned;

    use crate::source::{ErrorClass, SourceError};

    pub(super) struct Answer<'a>(pub(super) &'a [u8]);

    impl Answer<'_> {
        pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, SourceError> {
            serde_json::from_slice(self.0).map_err(|error| SourceError::new(ErrorClass::Response, error.to_string()))
        }
    }
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    if let Ok(text) = std::str::from_utf8(bytes) {
        is_endpoint(text);
        is_range(text);
    }
    is_list(bytes);
    Corpus::Keep
});

fn is_endpoint(text: &str) {
    let Some(endpoint) = endpoint::parse(text) else { return };
    assert!(endpoint.port() != 0 && text.len() <= 47, "{text:?}");
    assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit() || b".:[]".contains(&byte)), "{text:?}");
    assert_eq!(endpoint::parse(&endpoint.to_string()), Some(endpoint), "{text:?}");
    let special = match endpoint.ip() {
        IpAddr::V4(ip) => match ip.octets() {
            [0 | 127 | 224..=239, ..] | [169, 254, ..] | [255, 255, 255, 255] => true,
            _ => false,
        },
        IpAddr::V6(ip) => match ip.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] | [0xfe80..=0xfebf | 0xff00.., ..] => true,
            [0, 0, 0, 0, 0, 0xffff, ..] => panic!("{text:?} is an IPv4 address in disguise"),
            _ => false,
        },
    };
    assert_eq!(endpoint::forbidden(endpoint.ip(), &[], &[]).is_some(), special, "{text:?}");
}

fn is_range(text: &str) {
    let Ok(range) = text.parse::<endpoint::Range>() else { return };
    let (first, _) = text.split_once('/').expect("a range has a slash");
    let first: IpAddr = first.parse().expect("and an address in front of it");
    assert!(range.contains(first), "{text:?}");
    assert!(endpoint::forbidden(first, &[], &[range]).is_some(), "{text:?}");
    assert_eq!(range.to_string().parse(), Ok(range), "{text:?}");
}

fn is_list(bytes: &[u8]) {
    let Ok(listed) = wire::volumes(&client::Answer(bytes), "n1") else { return };
    for volume in &listed.volumes {
        assert!(!volume.id.is_empty());
        for text in [&volume.volume, &volume.endpoint, &volume.published].into_iter().flatten() {
            assert!(!text.is_empty());
        }
        if let Some(claim) = &volume.claim {
            let again = ObjectKey::new(claim.namespace(), claim.name());
            assert!(
                *claim == again && !claim.namespace().is_empty() && !claim.name().contains(['/', '?', '%']),
                "{claim}"
            );
        }
        volume.endpoint.as_deref().map(is_endpoint);
    }
    // Numbers that fit nowhere are nobody's business but this reader's.
    if let Ok(Value::Array(all)) = serde_json::from_slice::<Value>(bytes) {
        assert_eq!(listed.volumes.len() + listed.unreadable, all.len());
    }
}
