//! Where an NFS server says that it answers, and whether anybody may be led there.
//!
//! An endpoint comes from outside the cluster's own bookkeeping and ends up where the kernel of every node sends packets. So
//! only an address and a port are taken (never a name that somebody else resolves), and only an address at which a server can be:
//! behind a loopback address every node would find itself, behind a Service's address another Service.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, de};

/// A range of addresses, as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    bits: u8,
}

impl Range {
    /// Whether the address is in it.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.first, ip) {
            (IpAddr::V4(first), IpAddr::V4(ip)) => {
                let unlike = u64::from(first.to_bits() ^ ip.to_bits());
                unlike >> (32 - u32::from(self.bits)) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(ip)) => {
                let unlike = first.to_bits() ^ ip.to_bits();
                unlike.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Whether all of its addresses are of a kind at which no server can be.
    fn is_special(&self) -> bool {
        // The ranges below are no smaller than these.
        let narrow = match self.first {
            IpAddr::V4(_) => self.bits >= 8,
            IpAddr::V6(_) => self.bits >= 10,
        };
        narrow && special(self.first).is_some()
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of addresses; write it like 10.0.0.0/8 or fd00::/8");
        let (ip, bits) = text.split_once('/').ok_or_else(wrong)?;
        let first: IpAddr = ip.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { first, bits })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// An address and a port, or nothing: no names, no zones, no port 0, and no zeros in front of one, of which there could be any number.
#[must_use]
pub fn parse(text: &str) -> Option<SocketAddr> {
    let endpoint: SocketAddr = text.parse().ok()?;
    let zoned = matches!(endpoint, SocketAddr::V6(v6) if v6.scope_id() != 0 || text.contains('%'));
    // An IPv4 address in IPv6's clothes is refused by Kubernetes, and by who compares texts.
    let disguised = matches!(endpoint.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    let zeros = text.rsplit(':').next().is_some_and(|port| port.starts_with('0'));
    (!zeros && !zoned && !disguised).then_some(endpoint)
}

/// Why nobody may be led to an address.
#[must_use]
pub fn forbidden(ip: IpAddr, allowed: &[Range], services: &[Range]) -> Option<String> {
    let named = |range: &&Range| range.is_special() && range.contains(ip);
    if let Some(kind) = special(ip)
        && !allowed.iter().any(|range| named(&range))
    {
        return Some(format!("{kind}, and no server can be reached there from another node"));
    }
    if let Some(range) = services.iter().find(|range| range.contains(ip)) {
        return Some(format!("in the range of Services ({range}), where no server can be"));
    }
    let outside = !allowed.is_empty() && !allowed.iter().any(|range| range.contains(ip));
    outside.then(|| "in none of sharedVolumes.allowedEndpoints; add its range if servers may be there".to_owned())
}

/// What is special about an address at which no server can be.
fn special(ip: IpAddr) -> Option<&'static str> {
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    if ip.is_unspecified() {
        return Some("an unspecified address");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    match ip {
        IpAddr::V4(ip) if ip.is_link_local() => Some("a link-local address"),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("a link-local address"),
        IpAddr::V4(ip) if ip.is_broadcast() || ip.octets()[0] == 0 => Some("a broadcast or unspecified address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_with_a_port_is_an_endpoint() {
        for good in ["1.2.3.4:80", "10.224.0.4:25918", "0.0.0.0:1", "[::1]:80", "[fd00::4]:65535", "127.0.0.1:2049"] {
            assert_eq!(parse(good).map(|endpoint| endpoint.to_string()).as_deref(), Some(good));
        }
        for bad in [
            "",
            ":",
            "80",
            ":80",
            "1.2.3.4",
            "1.2.3.4:",
            "1.2.3.4:0",
            "1.2.3.4:080",
            "[::4:32:3]:0000000000000000000000000000000000000000007",
            "1.2.3.4:65536",
            "1.2.3.4:-1",
            "1.2.3.4:nfs",
            "1.2.3.4:80:80",
            "1.2.3:80",
            "1.2.3.4.5:80",
            "01.2.3.4:80",
            "::1:80",
            "[::1]",
            "[::1]:",
            "[::1",
            "::1]:80",
            "[fe80::1%eth0]:80",
            "[fe80::1%2]:80",
            "[::ffff:10.0.0.1]:80",
            "storage:80",
            "localhost:80",
            " 1.2.3.4:80",
            "1.2.3.4:80 ",
            "nfs://1.2.3.4:80",
            "[1.2.3.4]:80",
        ] {
            assert_eq!(parse(bad), None, "{bad:?} was taken for an endpoint");
        }
    }

    fn verdict(ip: &str, allowed: &[&str]) -> Option<String> {
        let allowed: Vec<Range> = allowed.iter().map(|range| range.parse().unwrap()).collect();
        forbidden(ip.parse().unwrap(), &allowed, &["10.96.0.0/12".parse().unwrap(), "fd96::/108".parse().unwrap()])
    }

    #[test]
    fn nobody_is_led_where_no_server_can_be() {
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "169.254.1.1",
            "fe80::1",
            "224.0.0.1",
            "239.1.1.1",
            "ff02::1",
            "0.0.0.0",
            "::",
            "0.1.2.3",
            "255.255.255.255",
            "10.96.0.1",
            "10.111.255.255",
            "fd96::1:2",
        ] {
            assert!(verdict(ip, &[]).is_some(), "{ip} is allowed");
            // What is allowed as a whole is not meant to allow that.
            assert!(verdict(ip, &["0.0.0.0/0", "::/0"]).is_some(), "{ip} is allowed by everything");
        }
        for ip in ["10.224.0.4", "192.168.1.1", "10.112.0.0", "10.95.255.255", "fd00::1", "2001:db8::1"] {
            assert_eq!(verdict(ip, &[]), None);
        }
    }

    #[test]
    fn only_allowed_ranges_are_allowed_if_any_are_named() {
        assert_eq!(verdict("10.224.0.4", &["10.224.0.0/16"]), None);
        assert!(verdict("10.225.0.4", &["10.224.0.0/16"]).unwrap().contains("allowedEndpoints"));
        assert!(verdict("fd00::1", &["10.224.0.0/16"]).is_some());
        assert_eq!(verdict("fd00::1", &["10.224.0.0/16", "fd00::/8"]), None);
    }

    #[test]
    fn a_special_range_is_allowed_only_by_its_name() {
        assert_eq!(verdict("127.0.0.1", &["127.0.0.0/8"]), None);
        assert_eq!(verdict("127.0.0.1", &["127.0.0.1/32"]), None);
        assert_eq!(verdict("::1", &["::1/128"]), None);
        assert!(verdict("127.0.0.1", &["126.0.0.0/7"]).is_some());
        assert!(verdict("127.0.0.1", &["128.0.0.0/1"]).is_some());
    }

    #[test]
    fn a_range_is_read_as_people_write_it() {
        for bad in ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "ten/8", "/8", ""] {
            let error = bad.parse::<Range>().unwrap_err();
            assert!(error.contains("10.0.0.0/8"), "{error}");
        }
        let all: Range = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("9.9.9.9".parse().unwrap()) && !all.contains("::1".parse().unwrap()));
        assert!("::/0".parse::<Range>().unwrap().contains("fd00::1".parse().unwrap()));
        let one: Range = "10.0.0.7/32".parse().unwrap();
        assert!(one.contains("10.0.0.7".parse().unwrap()) && !one.contains("10.0.0.6".parse().unwrap()));
    }
}
