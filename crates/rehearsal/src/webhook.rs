//! A webhook that tests look into.

use std::sync::Arc;

use anyhow::Result;
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;
use platform::admission::{Answer, Answering, Request, ServedCertificate, Webhook};
use rustls::{crypto::aws_lc_rs, pki_types::PrivateKeyDer, sign::CertifiedKey};

/// Stands in for the webhook of a path, so that it can be another one from one request to the next, and remembers the answers.
pub struct Understudy {
    path: &'static str,
    current: Mutex<Option<Arc<dyn Webhook>>>,
    answers: Mutex<Vec<Answer>>,
}

impl Understudy {
    /// Nobody yet.
    #[must_use]
    pub fn of(path: &'static str) -> Arc<Self> {
        Arc::new(Self { path, current: Mutex::default(), answers: Mutex::default() })
    }

    /// From now on this one answers, and what others answered is forgotten.
    pub fn play(&self, webhook: Arc<dyn Webhook>) {
        *self.current.lock() = Some(webhook);
        self.take();
    }

    /// What was answered since this was last asked.
    pub fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.answers.lock())
    }
}

impl Webhook for Understudy {
    fn path(&self) -> &'static str {
        self.path
    }

    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a> {
        let current = self.current.lock().clone().expect("nobody plays the webhook");
        Box::pin(async move {
            let answer = current.review(request).await;
            self.answers.lock().push(answer.clone());
            answer
        })
    }
}

/// A certificate of this machine that vouches for itself, and that to trust it by.
pub fn self_signed() -> Result<(ServedCertificate, String)> {
    let signed = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into());
    let certified = CertifiedKey::from_der(vec![signed.cert.der().clone()], key, &aws_lc_rs::default_provider())?;
    let served = ServedCertificate::default();
    served.replace(certified, Timestamp::now() + 24.hours());
    Ok((served, signed.cert.pem()))
}
