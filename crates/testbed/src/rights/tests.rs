use super::*;

const HOME: &str = "system:serviceaccount:home:keeper";

fn right(resource: &str, verb: &str) -> Right {
    Right { group: String::new(), resource: resource.to_owned(), verb: verb.to_owned() }
}

fn by(features: &[&str], right: Right) -> Asked {
    Asked { features: features.iter().map(|name| (*name).to_owned()).collect(), right, missing: None }
}

fn unused(granted: &BTreeMap<String, BTreeSet<Right>>, asked: &BTreeMap<Asked, usize>) -> Vec<(String, Right)> {
    let unused = uses(granted, asked).into_iter().filter(|(.., times)| *times == 0);
    unused.map(|(role, right, _)| (role, right)).collect()
}

#[test]
fn a_right_counts_as_used_only_if_it_is_clear_which_feature_used_it() {
    let granted = BTreeMap::from([
        ("ephemeral".to_owned(), BTreeSet::from([right("pods", "list"), right("pods", "watch")])),
        ("placement".to_owned(), BTreeSet::from([right("pods", "list"), right("nodes", "list")])),
        ("events".to_owned(), BTreeSet::from([right("events", "create")])),
        ("releaser".to_owned(), BTreeSet::from([right("pods", "delete")])),
    ]);
    let both = ["ephemeral", "placement"];
    let mut asked = BTreeMap::from([
        (by(&both, right("pods", "list")), 5),
        (by(&both, right("nodes", "list")), 1),
        (by(&["ephemeral"], right("events", "create")), 1),
    ]);
    let (of_ephemeral, of_placement) = ("ephemeral".to_owned(), "placement".to_owned());
    assert_eq!(
        unused(&granted, &asked),
        [
            (of_ephemeral.clone(), right("pods", "list")),
            (of_ephemeral.clone(), right("pods", "watch")),
            (of_placement, right("pods", "list"))
        ]
    );
    asked.insert(by(&["placement"], right("pods", "list")), 1);
    asked.insert(by(&["ephemeral"], right("pods", "list")), 1);
    asked.insert(Asked { missing: Some("/pods".to_owned()), ..by(&["ephemeral"], right("pods", "watch")) }, 1);
    assert_eq!(unused(&granted, &asked), [(of_ephemeral, right("pods", "watch"))]);
}

#[test]
fn the_rights_of_every_feature_are_known() -> Result<()> {
    let granted = granted()?;
    let roles: Vec<&str> = granted.keys().map(String::as_str).collect();
    let everybodys = ["certificates", "events", "leader", "scrub", WEBHOOK];
    let mut expected: Vec<&str> = FEATURES.into_iter().chain(everybodys).collect();
    expected.sort_unstable();
    assert_eq!(roles, expected);
    Ok(())
}

/// A release with a right for all, one for a name in its namespace, and an account that has none.
fn release() -> Vec<Value> {
    let rule = |group: &str, resource: &str, verb: &str, names: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb], "resourceNames": names});
    let subjects = json!([{"kind": "ServiceAccount", "name": "keeper", "namespace": "home"}]);
    let named = |namespace: Option<&str>| json!({"name": "keeper", "namespace": namespace});
    vec![
        json!({"kind": "ServiceAccount", "metadata": named(Some("home"))}),
        json!({"kind": "ServiceAccount", "metadata": {"name": "keeper-webhook", "namespace": "home"}}),
        json!({"kind": "ConfigMap", "data": {"config.yaml": "features: [releaser]"}}),
        json!({"kind": "ClusterRole", "metadata": named(None),
               "rules": [rule("", "pods", "list", &[]), rule("events.k8s.io", "events", "create", &[])]}),
        json!({"kind": "ClusterRoleBinding", "metadata": named(None), "subjects": subjects,
               "roleRef": {"kind": "ClusterRole", "name": "keeper"}}),
        json!({"kind": "Role", "metadata": named(Some("home")), "rules": [rule("", "secrets", "get", &["ours"])]}),
        json!({"kind": "RoleBinding", "metadata": named(Some("home")), "subjects": subjects,
               "roleRef": {"kind": "Role", "name": "keeper"}}),
        // It has the name of the other one, and is not bound.
        json!({"kind": "Role", "metadata": named(Some("elsewhere")), "rules": [rule("", "nodes", "get", &[])]}),
    ]
}

/// A line of the audit log: who asked, to do what, with what, where, of which name, and whether it was refused.
fn line(user: &str, verb: &str, [group, resource, namespace, name]: [&str; 4], refused: bool) -> String {
    let object = json!({"apiGroup": group, "resource": resource, "namespace": namespace, "name": name});
    let decision = if refused { "forbid" } else { "allow" };
    let request = json!({
        "stage": "ResponseComplete", "requestURI": format!("/{namespace}/{resource}/{name}"), "verb": verb,
        "user": {"username": user}, "objectRef": object, "annotations": {"authorization.k8s.io/decision": decision},
        "requestReceivedTimestamp": "2026-11-15T10:00:03Z", "stageTimestamp": "2026-11-15T10:00:03Z",
    });
    format!("{request}\n")
}

/// What is missing, as paths, after these lines.
fn missing(lines: &[String]) -> Result<Vec<String>> {
    let (directory, into) = (tempfile::tempdir()?, tempfile::tempdir()?);
    note_accounts(directory.path(), "home", &release())?;
    fs::write(directory.path().join("audit.log"), lines.concat())?;
    collect(directory.path(), into.path())?;
    Ok(asked(into.path())?.into_keys().filter_map(|asked| asked.missing).collect())
}

#[test]
fn what_the_chart_grants_is_not_missing_whoever_took_it_away() -> Result<()> {
    let lines = [
        line(HOME, "list", ["", "pods", "", ""], true),
        line(HOME, "list", ["", "pods", "shop", ""], true),
        line(HOME, "get", ["", "secrets", "home", "ours"], true),
        line(HOME, "create", ["authentication.k8s.io", "selfsubjectreviews", "", ""], true),
        // Tried where the newer group was refused.
        line(HOME, "create", ["", "events", "shop", ""], true),
    ];
    assert_eq!(missing(&lines)?, [""; 0]);
    Ok(())
}

#[test]
fn what_was_refused_and_is_granted_nowhere_is_missing() -> Result<()> {
    for (verb, object) in [
        ("watch", ["", "pods", "", ""]),
        ("list", ["apps", "pods", "", ""]),
        // Other names and namespaces are other rights.
        ("get", ["", "secrets", "home", "theirs"]),
        ("get", ["", "secrets", "shop", "ours"]),
        ("get", ["", "nodes", "", "node-1"]),
        ("create", ["apps", "events", "shop", ""]),
    ] {
        assert_eq!(missing(&[line(HOME, verb, object, true)])?.len(), 1, "{verb} {object:?}");
        assert_eq!(missing(&[line(HOME, verb, object, false)])?, [""; 0], "{verb} {object:?}");
    }
    // What one account has, the other has not; and who is none of the chart's is nobody's business.
    let webhook = format!("{HOME}-webhook");
    assert_eq!(missing(&[line(&webhook, "list", ["", "pods", "", ""], true)])?, ["//pods/"]);
    assert_eq!(missing(&[line("alice", "watch", ["", "pods", "", ""], true)])?, [""; 0]);
    Ok(())
}
