use std::time::Duration;

use platform::logging::KlogOptions;

use super::*;

const PROVISIONER: &str = "dynamic-pvc-provisioner";
const USAGE: &str = include_str!("dynamic-pvc-provisioner.usage.txt");
const USAGE_OF_RELEASER: &str = include_str!("reclaimable-pv-releaser.usage.txt");

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parse(line: &str) -> Result<Request, Stop> {
    DropIn::parse(Program::Provisioner, &words(line))
}

#[track_caller]
fn run(line: &str) -> DropIn {
    match parse(line) {
        Ok(Request::Run(settings)) => *settings,
        other => panic!("{line}: {other:?}"),
    }
}

fn klog(line: &str) -> KlogOptions {
    run(line).klog
}

fn klog_defaults() -> KlogOptions {
    KlogOptions::new(PROVISIONER)
}

#[test]
fn the_name_is_the_files_or_the_first_argument() {
    let requested = |line: &str| Invocation::requested(words(line).into_iter().map(OsString::from));
    let expected =
        Some(Invocation { original: Original::Klog(Program::Provisioner), arguments: words("-v 2 version") });
    for line in [
        "dynamic-pvc-provisioner -v 2 version",
        "/usr/local/bin/dynamic-pvc-provisioner -v 2 version",
        "claimkeeper dynamic-pvc-provisioner -v 2 version",
        "/bin/claimkeeper dynamic-pvc-provisioner -v 2 version",
    ] {
        assert_eq!(requested(line), expected, "{line}");
    }
    for line in ["claimkeeper run", "claimkeeper run dynamic-pvc-provisioner", "claimkeeper", "", "claimkeeper --help"]
    {
        assert_eq!(requested(line), None, "{line}");
    }
}

#[test]
fn the_usage_is_the_documented_one_to_the_letter() {
    for line in ["-h", "-help", "--help", "-v=2 -h -nonsense", "-h=3"] {
        assert_eq!(parse(line).unwrap_err(), Stop::Help(USAGE.to_owned()), "{line}");
    }
}

#[test]
fn what_is_wrong_is_told_in_the_words_of_go_above_the_usage() {
    for (line, sentence) in [
        ("-nope", "flag provided but not defined: -nope"),
        ("--nope=3", "flag provided but not defined: -nope"),
        ("---v", "bad flag syntax: ---v"),
        ("-=3", "bad flag syntax: -=3"),
        ("--=3", "bad flag syntax: --=3"),
        ("-controller-id", "flag needs an argument: -controller-id"),
        ("-v", "flag needs an argument: -v"),
        ("-v=x", r#"invalid value "x" for flag -v: strconv.ParseInt: parsing "x": invalid syntax"#),
        ("-v -", r#"invalid value "-" for flag -v: strconv.ParseInt: parsing "-": invalid syntax"#),
        (
            "-v=99999999999",
            r#"invalid value "99999999999" for flag -v: strconv.ParseInt: parsing "99999999999": value out of range"#,
        ),
        (
            "-stderrthreshold=loud",
            r#"invalid value "loud" for flag -stderrthreshold: strconv.ParseInt: parsing "loud": invalid syntax"#,
        ),
        ("-logtostderr=maybe", r#"invalid boolean value "maybe" for -logtostderr: parse error"#),
        ("-log_file_max_size=x", r#"invalid value "x" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=-1", r#"invalid value "-1" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=_1", r#"invalid value "_1" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=1_", r#"invalid value "1_" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=1__0", r#"invalid value "1__0" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=0x", r#"invalid value "0x" for flag -log_file_max_size: parse error"#),
        ("-log_file_max_size=", r#"invalid value "" for flag -log_file_max_size: parse error"#),
        (
            "-log_file_max_size=99999999999999999999",
            r#"invalid value "99999999999999999999" for flag -log_file_max_size: value out of range"#,
        ),
    ] {
        assert_eq!(parse(line).unwrap_err(), Stop::Wrong(format!("{sentence}\n{USAGE}")), "{line}");
    }
}

#[test]
fn flags_take_one_dash_or_two_and_their_value_behind_a_sign_or_a_space() {
    for line in
        ["-controller-id a -v 3", "--controller-id=a --v=3", "-controller-id=a -v +3", "-v 9 -v 3 --controller-id a"]
    {
        let settings = run(line);
        assert_eq!((settings.controller_id.as_str(), settings.klog.verbosity), ("a", 3), "{line}");
    }
    assert_eq!(run("-controller-id=a=b").controller_id, "a=b");
    assert_eq!(run("-controller-id -v").controller_id, "-v", "the next word is the value, whatever it looks like");
    assert_eq!(run("-controller-id=").controller_id, "");
}

#[test]
fn switches_take_no_further_word_for_their_value() {
    assert!(run("-skip_headers -controller-id a").klog.skip_headers);
    for no in ["0", "f", "F", "false", "FALSE", "False"] {
        assert!(!klog(&format!("-logtostderr={no}")).to_stderr, "{no}");
    }
    for yes in ["1", "t", "T", "true", "TRUE", "True"] {
        assert!(klog(&format!("-one_output={yes}")).one_output, "{yes}");
    }
    // The word ends the flags, as Go has it.
    let settings = run("-logtostderr false -controller-id a");
    assert!(settings.klog.to_stderr && settings.controller_id.is_empty());
}

#[test]
fn two_dashes_or_a_word_end_the_flags() {
    for line in ["-v 1 -- -v 2", "-v 1 word -v 2", "-v 1 - -v 2", "-v 1 version -v 2"] {
        assert_eq!(klog(line).verbosity, 1, "{line}");
    }
}

#[test]
fn the_version_is_asked_for_with_one_word_and_needs_no_flag() {
    for line in ["version", "-v 2 version", "-controller-id a -- version"] {
        assert!(matches!(parse(line), Ok(Request::Version)), "{line}");
    }
    for line in ["", "Version", "version now"] {
        assert!(matches!(parse(line), Ok(Request::Run(_))), "{line}");
    }
}

#[test]
fn every_flag_of_klog_reaches_the_log() {
    assert_eq!(klog(""), klog_defaults());
    let line = "-v=6 -logtostderr=false -alsologtostderr -stderrthreshold=warning -log_file=/log -log_file_max_size=0x10 \
                -log_dir=/logs -one_output -skip_headers";
    let expected = KlogOptions {
        program: PROVISIONER.to_owned(),
        verbosity: 6,
        to_stderr: false,
        also_to_stderr: true,
        stderr_threshold: 1,
        log_file: Some("/log".into()),
        log_file_max_size: 16,
        log_dir: Some("/logs".into()),
        one_output: true,
        skip_headers: true,
        without_effect: vec![],
    };
    assert_eq!(klog(line), expected);
    assert_eq!(klog("-log_file= -log_dir= -stderrthreshold=2"), klog_defaults());
    let sizes = ["0", "7", "010", "0o10", "0b10", "0X1F", "1_800", "0x_1_f", "0_7"]
        .map(|size| klog(&format!("-log_file_max_size={size}")).log_file_max_size);
    assert_eq!(sizes, [0, 7, 8, 8, 2, 31, 1800, 31, 7], "numbers as Go writes them");
}

#[test]
fn flags_without_effect_are_remembered_for_a_warning_if_they_ask_for_anything() {
    let asking = klog("-add_dir_header -vmodule=a=1 -skip_log_headers -log_backtrace_at=main.go:3 -vmodule=a=2");
    assert_eq!(asking.without_effect, ["-add_dir_header", "-skip_log_headers", "-log_backtrace_at", "-vmodule"]);
    assert_eq!(klog("-add_dir_header -add_dir_header=false -vmodule= -log_backtrace_at="), klog_defaults());
}

#[test]
fn the_documented_example_means_what_it_says() {
    // From the usage of the original, with its line breaks.
    let settings = run("-controller-id reclaimable-pvc-test \
          -namespace default \
          -lease-lock-name reclaimable-pvc-provisioner-test");
    let config = settings.config().unwrap();
    assert_eq!(config.namespace.as_deref(), Some("default"));
    assert!(config.leader_election.enabled);
    let lease = config.leader_election.resolve("elsewhere", || panic!("the identity is known"));
    assert_eq!((lease.name.as_str(), lease.namespace.as_str()), ("reclaimable-pvc-provisioner-test", "default"));
    let durations = [lease.lease_duration, lease.renew_deadline, lease.retry_period];
    assert_eq!(durations, [60, 15, 5].map(Duration::from_secs));
    lease.validate().unwrap();
    assert!(config.admin.listen.ip().is_loopback() && config.admin.listen.port() == 0);
    assert_eq!(settings.kubeconfig, None);
}

#[test]
fn the_lease_may_be_elsewhere_and_its_holder_may_have_a_name() {
    let settings =
        run("-controller-id a -namespace b -lease-lock-name c -lease-lock-namespace d -lease-lock-id e -kubeconfig f");
    let lease = settings.config().unwrap().leader_election.resolve("", String::new);
    assert_eq!([lease.name, lease.namespace, lease.identity], ["c", "d", "e"]);
    assert_eq!(settings.kubeconfig.as_deref(), Some(Path::new("f")));
    let everywhere = run("-controller-id a -lease-lock-name c -lease-lock-namespace d -kubeconfig=");
    assert_eq!((everywhere.config().unwrap().namespace, everywhere.kubeconfig), (None, None));
}

#[test]
fn replicas_call_themselves_by_different_uuids() {
    let (one, other) = (run("").lease_lock_id, run("").lease_lock_id);
    assert_ne!(one, other);
    let parts: Vec<usize> = one.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{one}");
    assert!(one[14..].starts_with('4') && one[19..].starts_with(['8', '9', 'a', 'b']), "{one}");
}

#[test]
fn what_is_missing_is_fatal_in_the_words_of_the_original() {
    for (line, sentence) in [
        ("-lease-lock-name a -namespace b", "unable to get controller id (missing controller-id flag)."),
        ("-controller-id a -namespace b", "unable to get lease lock resource name (missing lease-lock-name flag)."),
        (
            "-controller-id a -lease-lock-name b",
            "unable to get lease lock resource namespace (missing lease-lock-namespace flag).",
        ),
    ] {
        assert_eq!(run(line).config().unwrap_err().to_string(), sentence, "{line}");
    }
}

#[track_caller]
fn releaser(line: &str) -> DropIn {
    match DropIn::parse(Program::Releaser, &words(line)) {
        Ok(Request::Run(settings)) => *settings,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_releasers_usage_is_the_documented_one_to_the_letter() {
    let stop = DropIn::parse(Program::Releaser, &words("-h")).unwrap_err();
    assert_eq!(stop, Stop::Help(USAGE_OF_RELEASER.to_owned()));
    let requested = Invocation::requested(words("/usr/bin/reclaimable-pv-releaser -h").into_iter().map(OsString::from));
    assert_eq!(requested, Some(Invocation { original: Original::Klog(Program::Releaser), arguments: words("-h") }));
    let provisioners = parse("-disable-automatic-association").unwrap_err();
    assert!(matches!(provisioners, Stop::Wrong(text) if text.starts_with("flag provided but not defined: ")));
}

#[test]
fn the_releaser_looks_after_all_namespaces_wherever_its_lease_is() {
    let line = "-controller-id ci -lease-lock-name lock -lease-lock-namespace default";
    let config = releaser(line).config().unwrap();
    assert_eq!((config.features, config.namespace), (vec![crate::config::Feature::Releaser], None));
    assert!(config.releaser.automatic_association);
    assert_eq!(config.releaser.controller_id, "ci");
    assert_eq!(config.releaser.association_label, "reclaimable-pv-releaser/managed-by");
    assert!(releaser(line).warnings().is_empty());

    let settings = releaser("-controller-id ci -lease-lock-name lock -namespace ns -disable-automatic-association");
    let config = settings.config().unwrap();
    assert_eq!((config.leader_election.namespace.as_deref(), config.namespace), (Some("ns"), None));
    assert!(!config.releaser.automatic_association);
    assert!(settings.warnings()[0].starts_with("-namespace is only where the Lease is"));
}
