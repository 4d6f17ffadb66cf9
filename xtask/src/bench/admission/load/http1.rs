//! As much of HTTP/1.1 as a client with keep-alive needs: prepared requests out, answers with a length in.

use anyhow::{Context, Result, ensure};

use crate::bench::admission::reviews::Review;

/// As the API server calls itself.
pub(super) const USER_AGENT: &str = "kube-apiserver-admission";
pub(super) const ACCEPT: &str = "application/json, */*";

/// An answer in what was read so far.
pub(super) struct Answer<'a> {
    pub body: &'a [u8],
}

/// A review as bytes on the wire.
pub(super) fn request(review: &Review) -> Vec<u8> {
    let head = format!(
        "POST {}?timeout=10s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: {USER_AGENT}\r\nAccept: {ACCEPT}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        review.path,
        review.body.len()
    );
    [head.as_bytes(), &review.body].concat()
}

/// The answer, once all of it was read.
pub(super) fn answer(read: &[u8]) -> Result<Option<Answer<'_>>> {
    let Some(end) = find(read, b"\r\n\r\n") else { return Ok(None) };
    let (head, body) = (std::str::from_utf8(&read[..end])?, &read[end + 4..]);
    let (status, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    ensure!(status.starts_with("HTTP/1.1 200 "), "answered with {status}: {}", String::from_utf8_lossy(body));
    let mut headers = headers.split("\r\n").filter_map(|header| header.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.context("an answer without a length")?.1.trim().parse()?;
    ensure!(body.len() <= length, "more was answered than the answer's length says");
    Ok((body.len() == length).then_some(Answer { body }))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n{\"uid\":\"1\",\"allowed\":false}";

    #[test]
    fn an_answer_is_there_when_all_of_it_was_read() {
        for end in 0..WHOLE.len() {
            assert!(answer(&WHOLE[..end]).unwrap().is_none(), "after {end} bytes");
        }
        assert!(answer(WHOLE).unwrap().is_some());
    }

    #[test]
    fn an_answer_with_another_status_or_more_than_its_length_is_refused() {
        assert!(answer(b"HTTP/1.1 500 Internal Server Error\r\n\r\n").is_err());
        assert!(answer(&[WHOLE, b"x"].concat()).is_err());
    }
}
