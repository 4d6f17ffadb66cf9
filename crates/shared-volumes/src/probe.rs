//! Whether a server answers, before anybody is told of its address.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::settings::Probe;

/// Who takes longer is not ready for clients.
const PATIENCE: Duration = Duration::from_secs(2);

/// The call that does nothing, of NFS version 4 (RFC 7530), in the words of ONC RPC (RFC 5531) over TCP: one last fragment of 40
/// bytes; then transaction, call, RPC version 2, program 100003, version 4, procedure 0, and twice nobody's credentials.
const NULL_CALL: [u8; 44] = {
    let words: [u32; 11] = [0x8000_0028, 0x636c_6169, 0, 2, 100_003, 4, 0, 0, 0, 0, 0];
    let mut bytes = [0; 44];
    let mut word = 0;
    while word < words.len() {
        let [a, b, c, d] = words[word].to_be_bytes();
        (bytes[word * 4], bytes[word * 4 + 1], bytes[word * 4 + 2], bytes[word * 4 + 3]) = (a, b, c, d);
        word += 1;
    }
    bytes
};

/// Whether it answers as it should.
pub(crate) async fn answers(endpoint: SocketAddr, probe: Probe) -> bool {
    let ask = async {
        let mut connection = TcpStream::connect(endpoint).await?;
        if probe == Probe::Nfs {
            connection.write_all(&NULL_CALL).await?;
            let mut reply = [0; 28];
            connection.read_exact(&mut reply).await?;
            return Ok(is_success(&reply));
        }
        Ok::<bool, std::io::Error>(true)
    };
    probe == Probe::None || timeout(PATIENCE, ask).await.is_ok_and(|answer| answer.unwrap_or(false))
}

/// A reply to our call that was accepted and carried out.
fn is_success(reply: &[u8; 28]) -> bool {
    let word = |at: usize| u32::from_be_bytes([reply[at * 4], reply[at * 4 + 1], reply[at * 4 + 2], reply[at * 4 + 3]]);
    // Fragment, transaction, reply, accepted, verifier (two words if it is nobody's), success.
    word(1) == 0x636c_6169 && word(2) == 1 && word(3) == 0 && word(5) == 0 && word(6) == 0
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn server(reply: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut call = [0; 44];
                if connection.read_exact(&mut call).await.is_ok() && call == NULL_CALL {
                    let _ = connection.write_all(&reply).await;
                }
            }
        });
        address
    }

    fn reply(words: [u32; 7]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[tokio::test]
    async fn only_a_server_that_speaks_nfs_answers_its_call() {
        let good = server(reply([0x8000_0018, 0x636c_6169, 1, 0, 0, 0, 0])).await;
        assert!(answers(good, Probe::Nfs).await && answers(good, Probe::Tcp).await && answers(good, Probe::None).await);
        let unavailable = server(reply([0x8000_0018, 0x636c_6169, 1, 0, 0, 0, 1])).await;
        assert!(!answers(unavailable, Probe::Nfs).await);
        let other = server(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await;
        assert!(!answers(other, Probe::Nfs).await && answers(other, Probe::Tcp).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        assert!(!answers(closed, Probe::Tcp).await && answers(closed, Probe::None).await);
    }
}
