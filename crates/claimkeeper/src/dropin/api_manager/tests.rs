use super::*;

fn parse(line: &str) -> Result<Settings, Stop> {
    Settings::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
}

fn config(line: &str) -> Config {
    parse(line).unwrap().config().unwrap()
}

#[test]
fn without_flags_it_is_as_the_original() {
    let config = config("");
    assert_eq!(config.features, [Feature::SharedVolumes]);
    assert!(!config.leader_election.enabled);
    assert_eq!(config.admin.listen.to_string(), "0.0.0.0:8080");
    let settings = config.shared_volumes.settings(None);
    assert_eq!((settings.service_name, settings.endpoint_gone), (ServiceName::Pv, EndpointGone::Keep));
    assert_eq!((settings.poll_interval.as_secs(), settings.cache_expiry.as_secs()), (5, 60));
    assert_eq!((settings.create_poll_interval.as_secs(), settings.create_wait_duration.as_secs()), (1, 20));
    let storageos = config.shared_volumes.storageos();
    assert_eq!((storageos.refresh_interval.as_secs(), storageos.retry_interval.as_secs()), (60, 5));
    assert_eq!(storageos.secret_path.to_str(), Some("/etc/storageos/secrets/api"));
}

#[test]
fn flags_are_known_by_all_names_that_they_had() {
    for line in ["-api-poll-interval=1m30s", "--volume-poll-interval 90s"] {
        assert_eq!(config(line).shared_volumes.settings(None).poll_interval.as_secs(), 90, "{line}");
    }
    for line in [
        "-k8s-create-poll-interval=50ms -k8s-create-wait-duration 1m",
        "--k8s-create-poll-interval 50ms --k8s-create-wait-duration=60s",
    ] {
        let settings = config(line).shared_volumes.settings(None);
        assert_eq!((settings.create_poll_interval.as_millis(), settings.create_wait_duration.as_secs()), (50, 60));
    }
    for line in
        ["-api-refresh-interval=2m -api-retry-interval=1s", "--api-refresh-interval 120s --api-retry-interval 1000ms"]
    {
        let storageos = config(line).shared_volumes.storageos();
        assert_eq!((storageos.refresh_interval.as_secs(), storageos.retry_interval.as_secs()), (120, 1));
    }
    for line in ["-cache-expiry-interval 2m", "--volume-expiry-interval=120s"] {
        assert_eq!(config(line).shared_volumes.settings(None).cache_expiry.as_secs(), 120, "{line}");
    }
    let never = config("-volume-expiry-interval=-1s").shared_volumes.settings(None).cache_expiry;
    assert!(never > Duration::from_hours(24 * 300));
    assert_eq!(config("-volume-expiry-interval=0").shared_volumes.settings(None).cache_expiry.as_secs(), 60);
    // The original takes any time; less than is good for anybody becomes the least that is.
    let least =
        config("-api-poll-interval=0 -k8s-create-poll-interval=-1s -api-refresh-interval=0 -api-retry-interval=0");
    assert_eq!(least.shared_volumes.settings(None).poll_interval, SHORTEST_POLL);
    assert!(config("-cache-expiry-interval=99999999999h").shared_volumes.settings(None).cache_expiry <= FOR_EVER);
}

#[test]
fn the_lease_is_that_of_the_original() {
    let line = "-enable-leader-election -namespace storageos -leader-renew-seconds=20";
    let election = config(line).leader_election.resolve("elsewhere", || "me".to_owned());
    assert_eq!((election.name.as_str(), election.namespace.as_str()), (LEASE, "storageos"));
    let seconds = [election.lease_duration, election.renew_deadline, election.retry_period].map(|time| time.as_secs());
    assert_eq!(seconds, [24, 20, 5]);
    assert!(config("-enable-leader-election").leader_election.enabled);
    for (seconds, words) in [("5", "renewDeadline (5s) must be greater"), ("18446744073709551615", "does not fit")] {
        let line = format!("-enable-leader-election -leader-renew-seconds={seconds}");
        let error = parse(&line).unwrap().config().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!config(&format!("-leader-renew-seconds={seconds}")).leader_election.enabled);
    }
}

#[test]
fn flags_of_other_controllers_are_taken_and_others_are_not() {
    let line = "-scheduler-name= -node-poll-interval=1h -enable-pvc-label-sync=false -node-fencer-workers 3 \
                -namespace-delete-gc-interval=0s -webhook-cert-validity=8760h -zap-log-level=2 -zap-encoder=console";
    let settings = parse(line).unwrap();
    assert_eq!((settings.log_level.as_str(), settings.log_format), ("debug", Format::Text));
    for (line, words) in [
        ("-nope", "flag provided but not defined: -nope\nUsage of storageos-api-manager:\n"),
        ("-api-poll-interval=soon", "invalid value \"soon\" for flag -api-poll-interval: parse error\n"),
        ("--volume-poll-interval 5", "invalid value \"5\" for flag -volume-poll-interval: parse error\n"),
        ("-cache-expiry-interval=x", "invalid value \"x\" for flag -cache-expiry-interval: parse error\n"),
        ("--volume-expiry-interval=1y", "invalid value \"1y\" for flag -volume-expiry-interval: parse error\n"),
        ("-leader-renew-seconds=ten", "invalid value \"ten\" for flag -leader-renew-seconds: parse error\n"),
        ("-enable-leader-election=maybe", "invalid boolean value \"maybe\" for -enable-leader-election: parse error\n"),
        ("-api-endpoint", "flag needs an argument: -api-endpoint\n"),
        ("-zap-encoder=xml", "invalid value \"xml\" for flag -zap-encoder: invalid encoder value"),
        ("-node-fencer-workers=many", "invalid value \"many\" for flag -node-fencer-workers: parse error\n"),
    ] {
        let Err(Stop::Wrong(text)) = parse(line) else { panic!("{line} was accepted") };
        assert!(text.starts_with(words), "{text}");
    }
    let Err(Stop::Help(text)) = parse("-h") else { panic!("no help") };
    assert!(
        text.contains("  -volume-poll-interval duration\n    \tFrequency of StorageOS volume polling. (default 5s)\n")
    );
}

#[test]
fn metrics_are_served_where_the_flag_says() {
    for (line, address) in [
        ("-metrics-addr=:9090", "0.0.0.0:9090"),
        ("-metrics-addr=127.0.0.1:1", "127.0.0.1:1"),
        ("-metrics-addr=0", "127.0.0.1:0"),
    ] {
        assert_eq!(config(line).admin.listen.to_string(), address);
    }
    assert!(parse("-metrics-addr=nowhere").unwrap().config().is_err());
}
