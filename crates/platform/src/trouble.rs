//! What goes wrong for a while: said once when it begins and once when it ends, with its causes in one line.

use std::error::Error;

/// Whether something is wrong, and what was said about it last.
#[derive(Debug, Default)]
pub struct Trouble {
    told: Option<String>,
}

impl Trouble {
    /// Something is wrong. True if that is news.
    pub fn begins(&mut self, problem: &str) -> bool {
        let news = self.told.as_deref() != Some(problem);
        if news {
            self.told = Some(problem.to_owned());
        }
        news
    }

    /// All is well. True if that is news.
    pub fn ends(&mut self) -> bool {
        self.told.take().is_some()
    }
}

/// An error with its causes. Libraries differ in whether an error's own text has its cause's in it; here each is said once.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Example {
        #[error("cannot connect")]
        Connect(#[source] std::io::Error),
        #[error("request failed: {0}")]
        Request(#[source] Box<Self>),
    }

    #[test]
    fn every_cause_is_said_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Example::Request(Box::new(Example::Connect(refused)));
        assert_eq!(causes(&error), "request failed: cannot connect: connection refused");
    }

    #[test]
    fn only_what_is_new_is_told() {
        let mut trouble = Trouble::default();
        assert!(!trouble.ends());
        assert!(trouble.begins("no connection"));
        assert!(!trouble.begins("no connection"));
        assert!(trouble.begins("forbidden"));
        assert!(trouble.ends());
        assert!(!trouble.ends());
        assert!(trouble.begins("forbidden"));
    }
}
