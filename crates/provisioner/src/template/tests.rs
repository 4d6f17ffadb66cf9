use proptest::prelude::*;
use serde_json::json;

use self::templates::{EXAMPLE, hostile, with};
use super::*;

#[path = "../../tests/claims/templates.rs"]
mod templates;

const STRICT: Rules = Rules::Strict { allowed: Vec::new() };

fn parse(text: &str) -> Result<Template, TemplateError> {
    Template::parse(text, "ci", &STRICT)
}

#[test]
fn the_originals_example_is_taken_as_it_is() {
    let template = parse(EXAMPLE).unwrap();
    assert!(template.metadata.is_empty());
    assert_eq!(
        Value::Object(template.spec),
        json!({
            "storageClassName": "reclaimable-storage-class",
            "resources": {"requests": {"storage": "1Gi"}},
            "accessModes": ["ReadWriteOnce"],
        })
    );
}

#[test]
fn json_is_as_good_as_yaml() {
    let json = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    for text in [json.to_string(), serde_json::to_string_pretty(&json).unwrap().replace("  ", "\t")] {
        parse(&text).unwrap();
    }
}

#[test]
fn everything_that_a_pods_author_may_decide_is_kept() {
    let text = with(
        "labels: {app: web, example.com/team: ci}, annotations: {note: 'yes'}",
        ", storageClassName: no, volumeMode: Block, volumeAttributesClassName: gold",
    );
    let template = parse(&text).unwrap();
    assert_eq!(
        Value::Object(template.metadata),
        json!({"labels": {"app": "web", "example.com/team": "ci"}, "annotations": {"note": "yes"}})
    );
    assert_eq!(template.spec["storageClassName"], "no", "a word of YAML 1.1 is only a word");
    assert_eq!(template.spec["volumeAttributesClassName"], "gold");
}

#[test]
fn what_kubectl_leaves_behind_is_ignored() {
    let text = with(
        "name: anything, namespace: ci, creationTimestamp: null, generateName: '', finalizers: [], \
         ownerReferences: [{apiVersion: v1, kind: Pod, name: other, uid: u0}]",
        ", volumeName: '', selector: {}, dataSource: null, dataSourceRef: [], storageClassName: null",
    ) + "status: {}\n";
    let template = parse(&text).unwrap();
    assert!(template.metadata.is_empty(), "{template:?}");
    let given: Vec<&String> = template.spec.keys().collect();
    assert_eq!(given, ["accessModes", "resources", "storageClassName"], "a restricted field does not even go on blank");
}

#[test]
fn restricted_fields_are_taken_if_an_administrator_names_them() {
    for (field, value) in [
        (RestrictedField::VolumeName, "pv-1"),
        (RestrictedField::Selector, "{matchLabels: {a: b}}"),
        (RestrictedField::DataSource, "{kind: PersistentVolumeClaim, name: other}"),
        (RestrictedField::DataSourceRef, "{kind: PersistentVolumeClaim, name: other}"),
    ] {
        let text = with("", &format!(", {}: {value}", field.name()));
        let refused = parse(&text).unwrap_err().to_string();
        assert!(refused.contains(field.name()) && refused.contains("provisioner.allowFields"), "{refused}");
        let rules = Rules::Strict { allowed: vec![field] };
        assert!(Template::parse(&text, "ci", &rules).unwrap().spec.contains_key(field.name()));
        assert_eq!(field.name().parse(), Ok(field));
    }
    assert!("storageClassName".parse::<RestrictedField>().unwrap_err().contains("volumeName"));
}

#[test]
fn under_the_rules_of_the_seed_all_but_the_owner_is_taken() {
    let text = with("finalizers: [example.dev/x], ownerReferences: [{uid: u0}]", ", volumeName: pv-1, misspelt: true");
    let template = Template::parse(&text, "ci", &Rules::Seed).unwrap();
    assert_eq!(Value::Object(template.metadata), json!({"finalizers": ["example.dev/x"]}));
    assert_eq!((&template.spec["volumeName"], &template.spec["misspelt"]), (&json!("pv-1"), &json!(true)));
    assert!(Template::parse("kind: Pod\napiVersion: v1", "ci", &Rules::Seed).is_err());
}

#[test]
fn every_hostile_template_is_refused_with_a_sentence_that_helps() {
    for (text, part) in hostile() {
        let shown: String = text.chars().take(200).collect();
        let error = parse(&text).map(|template| panic!("{shown}\nwas taken as {template:?}")).unwrap_err().to_string();
        assert!(error.contains(part), "{shown}\ngave: {error}");
        assert!(error.len() < 400 && !error.contains('\n'), "{shown}\ngave: {error}");
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = parse(&text);
        let _ = Template::parse(&text, "ci", &Rules::Seed);
    }

    #[test]
    fn only_allowed_fields_come_through(key in "[a-zA-Z]{1,20}", value in "[a-z]{1,5}") {
        if let Ok(template) = parse(&with("", &format!(", {key}: {value}"))) {
            prop_assert!(["storageClassName", "volumeMode", "volumeAttributesClassName"].contains(&key.as_str()));
            prop_assert_eq!(template.spec.len(), 3);
        }
    }
}
