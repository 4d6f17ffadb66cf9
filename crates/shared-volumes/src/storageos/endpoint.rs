//! Where the API is, as people write it.

use std::net::IpAddr;

/// The port of the API.
const PORT: u16 = 5705;

/// The URL in front of every path. Without a scheme it is `http`, without a port 5705, as the original has it.
pub fn base_url(endpoint: &str) -> Result<String, String> {
    let wrong = |why: &str| {
        Err(format!(
            "`{endpoint}` {why}; write the endpoint like storageos, 10.0.0.1:5705 or https://storageos.example"
        ))
    };
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if !matches!(scheme, "http" | "https") {
        return wrong("has another scheme than http or https");
    }
    if host.is_empty() || host.contains(['/', '?', '#', '@']) || host.contains(char::is_whitespace) {
        return wrong("is not a host with an optional port");
    }
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{PORT}"),
        _ if host.ends_with(']') => format!("{host}:{PORT}"),
        _ => match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port != 0) => host.to_owned(),
            Some(_) => return wrong("has no valid port"),
            None => format!("{host}:{PORT}"),
        },
    };
    let url = format!("{scheme}://{host}/v2");
    if url.parse::<http::Uri>().is_err() {
        return wrong("is not a host with an optional port");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_endpoint_leaves_out_is_added() {
        for (endpoint, url) in [
            ("storageos", "http://storageos:5705/v2"),
            ("storageos:80", "http://storageos:80/v2"),
            ("10.0.0.1", "http://10.0.0.1:5705/v2"),
            ("https://storageos.example", "https://storageos.example:5705/v2"),
            ("https://storageos.example:443/", "https://storageos.example:443/v2"),
            ("fd00::1", "http://[fd00::1]:5705/v2"),
            ("[fd00::1]", "http://[fd00::1]:5705/v2"),
            ("http://[fd00::1]:80", "http://[fd00::1]:80/v2"),
        ] {
            assert_eq!(base_url(endpoint).as_deref(), Ok(url));
        }
        for endpoint in ["", "http://", "ftp://x", "a b", "x:0", "x:port", "x/path", "user@x", "x?y"] {
            assert!(base_url(endpoint).is_err(), "{endpoint} was accepted");
        }
    }
}
