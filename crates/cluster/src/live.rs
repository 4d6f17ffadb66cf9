//! What is read live: all objects of a kind, page by page.

use std::fmt::Debug;

use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;

use crate::store::Slim;

/// How many objects a page of a list has.
const PAGE_SIZE: u32 = 500;

/// All objects of a kind, as the server has them at one moment.
pub async fn list<T: Slim>(api: &Api<T::Wire>) -> kube::Result<Vec<T>> {
    Ok(pages(api).await?.into_iter().filter_map(T::from_wire).collect())
}

/// The same, as they come.
pub async fn pages<K: Clone + Debug + DeserializeOwned>(api: &Api<K>) -> kube::Result<Vec<K>> {
    let mut objects = Vec::new();
    visit(api, |object| objects.push(object)).await?;
    Ok(objects)
}

/// Looks at each of them, and holds no more than a page.
pub async fn visit<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, mut look: impl FnMut(K)) -> kube::Result<()> {
    let mut next = None::<String>;
    loop {
        let parameters = ListParams { continue_token: next.take(), ..ListParams::default().limit(PAGE_SIZE) };
        let page = api.list(&parameters).await?;
        page.items.into_iter().for_each(&mut look);
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(());
        }
    }
}
