//! What we know of the cluster: slim objects, one watch per kind, indexes, ownership and names.
//!
//! ```text
//! kube-apiserver ==watch==> decode (binary or JSON; slim, without managedFields) ==> Store ==changes==> a feature's queue
//!                                                                                      └── indexes <── observations of every feature
//! ```
//!
//! A store never writes and is never written back: writes are explicit patches made by the features. What a store holds
//! may be old; whoever is about to do something that cannot be undone reads live and decides again.

pub mod attachment;
pub mod binary;
pub mod claim;
pub mod class;
pub mod creation;
pub mod decision;
pub mod driver;
pub mod endpoints;
pub mod finding;
pub mod fit;
pub mod job;
pub mod key;
pub mod live;
mod meta;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod quantity;
pub mod quota;
pub mod server;
pub mod service;
pub mod slice;
pub mod store;
pub mod template;
pub mod volume;
pub mod watch;

pub use attachment::Attachment;
pub use claim::Claim;
pub use class::Class;
pub use driver::Driver;
pub use endpoints::Endpoints;
pub use finding::Finding;
pub use job::Job;
pub use key::ObjectKey;
pub use namespace::Namespace;
pub use node::Node;
pub use pod::Pod;
pub use quota::Quota;
pub use service::Service;
pub use slice::Slice;
pub use store::Store;
pub use template::Template;
pub use volume::Volume;
