use std::sync::atomic::AtomicBool;

use futures::future::join_all;
use tokio::sync::Notify;

use super::*;
use crate::{
    admission::{Answer, Answering, review},
    metrics::Registry,
};

/// Answers nobody before it is told to.
#[derive(Default)]
struct Held {
    released: AtomicBool,
    release: Notify,
}

impl Webhook for Held {
    fn path(&self) -> &'static str {
        "/held"
    }

    fn review<'a>(&'a self, _: &'a review::Request<'a>) -> Answering<'a> {
        Box::pin(async {
            while !self.released.load(Ordering::Relaxed) {
                self.release.notified().await;
            }
            Answer::allow("Fine", "")
        })
    }
}

fn longest() -> Request<Full<Bytes>> {
    let review = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
        "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE"}}"#;
    let body = review.to_owned() + &" ".repeat(MOST_BODY - review.len());
    let request = Request::post("/held").header(header::CONTENT_TYPE, "application/json");
    request.body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn bodies_that_are_too_much_together_are_turned_away_until_there_is_room() {
    let held = Arc::new(Held::default());
    let webhook: Arc<dyn Webhook> = Arc::<Held>::clone(&held);
    let service =
        Service::new(vec![webhook], Duration::from_mins(1), usize::MAX, ServerMetrics::new(&Registry::default()));
    let fit = MOST_BUFFERED / MOST_BODY;
    let mut kept: Vec<_> = (0..fit).map(|_| Box::pin(service.respond(longest()))).collect();
    for response in &mut kept {
        assert!(futures::poll!(response).is_pending());
    }
    let refused = service.respond(longest()).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");

    held.released.store(true, Ordering::Relaxed);
    held.release.notify_waiters();
    assert!(join_all(kept).await.iter().all(|response| response.status() == StatusCode::OK));
    assert_eq!(service.respond(longest()).await.status(), StatusCode::OK);
    assert_eq!((service.buffered.load(Ordering::Relaxed), service.in_flight.load(Ordering::Relaxed)), (0, 0));
}
