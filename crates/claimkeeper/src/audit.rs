//! `claimkeeper audit`: what the features would decide now about what is there, as rows.

use std::{path::PathBuf, sync::Arc};

use cluster::Finding;
use platform::{
    client::{self, ClientOptions},
    metrics::Registry,
};

use crate::{
    config::{Config, Feature},
    why::unanswered,
};

/// The columns, in their order; the last one only where there is room for it.
const COLUMNS: [&str; 7] = ["FEATURE", "NAMESPACE", "KIND", "NAME", "DECISION", "REASON", "MESSAGE"];

#[derive(clap::Args)]
pub(crate) struct AuditArguments {
    /// Only what is in this namespace; everything if absent
    #[arg(short, long)]
    namespace: Option<String>,
    /// The configuration of the operator, where it differs from the defaults
    #[arg(long, value_name = "FILE", env = "CLAIMKEEPER_CONFIG")]
    config: Option<PathBuf>,
    /// How to tell it; `wide` adds the messages
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Which cluster; found as for `run` if absent
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
    Csv,
}

/// Asks the cluster and prints.
pub(crate) fn run(arguments: &AuditArguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut findings = runtime.block_on(find(arguments))?;
    findings.sort();
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&findings)?),
        Output::Csv => print!("{}", csv(&findings)),
        Output::Table | Output::Wide if findings.is_empty() => println!("No feature objects to anything."),
        Output::Table => print!("{}", table(&findings, COLUMNS.len() - 1)),
        Output::Wide => print!("{}", table(&findings, COLUMNS.len())),
    }
    Ok(())
}

async fn find(arguments: &AuditArguments) -> anyhow::Result<Vec<Finding>> {
    let config = client::load_config(arguments.kubeconfig.as_deref())?;
    let client = client::build(config, ClientOptions::new(&Registry::default()))?;
    let configuration = arguments.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    let namespace = arguments.namespace.as_deref().or(configuration.namespace.as_deref());
    let settings = Arc::new(configuration.enforcement_settings());
    let found = enforcement::audit::find(&client, &settings, namespace).await;
    let mut findings = found.map_err(|error| unanswered(&error))?;
    let runs = |feature| configuration.features.is_empty() || configuration.features.contains(&feature);
    // It takes rights that nobody needs who does not run it.
    if runs(Feature::Placement) {
        let settings = configuration.placement_settings();
        let found = placement::gone::audit::find(&client, &settings, namespace).await;
        findings.extend(found.map_err(|error| unanswered(&error))?);
    }
    if runs(Feature::SharedVolumes) {
        let found = shared_volumes::audit::find(&client, namespace).await;
        findings.extend(found.map_err(|error| unanswered(&error))?);
    }
    Ok(findings)
}

fn cells(finding: &Finding) -> [&str; 7] {
    let Finding { feature, namespace, kind, name, decision, reason, message } = finding;
    [feature, namespace, kind, name, decision, reason, message]
}

/// Columns as wide as what is in them; the last one as wide as it likes.
fn table(findings: &[Finding], columns: usize) -> String {
    let rows: Vec<[&str; 7]> = [COLUMNS].into_iter().chain(findings.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[&str; 7]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// As RFC 4180 has it, but with the line ends of everybody else.
fn csv(findings: &[Finding]) -> String {
    let quoted = |cell: &&str| {
        let plain = !cell.contains(['"', ',', '\n', '\r']);
        if plain { (*cell).to_owned() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
    };
    let line = |row: [&str; 7]| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    [COLUMNS].into_iter().chain(findings.iter().map(cells)).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str, message: &'static str) -> Finding {
        Finding {
            feature: "enforcement",
            namespace: "ci".to_owned(),
            kind: "PersistentVolumeClaim",
            name: name.to_owned(),
            decision: "deny",
            reason: "NotEphemeral",
            message: message.into(),
        }
    }

    #[test]
    fn columns_line_up_and_only_the_wide_table_has_the_message() {
        let findings = [finding("a", "one, two"), finding("a-long-name", "three")];
        assert_eq!(
            table(&findings, COLUMNS.len() - 1),
            "FEATURE      NAMESPACE  KIND                   NAME         DECISION  REASON\n\
             enforcement  ci         PersistentVolumeClaim  a            deny      NotEphemeral\n\
             enforcement  ci         PersistentVolumeClaim  a-long-name  deny      NotEphemeral\n"
        );
        assert!(table(&findings, COLUMNS.len()).ends_with("  NotEphemeral  three\n"));
    }

    #[test]
    fn a_cell_with_a_comma_or_a_quote_stays_one_cell() {
        let text = csv(&[finding("a", "say \"yes\", or no")]);
        let (head, row) = text.split_once('\n').unwrap();
        assert_eq!(head, "FEATURE,NAMESPACE,KIND,NAME,DECISION,REASON,MESSAGE");
        assert_eq!(row, "enforcement,ci,PersistentVolumeClaim,a,deny,NotEphemeral,\"say \"\"yes\"\", or no\"\n");
    }
}
