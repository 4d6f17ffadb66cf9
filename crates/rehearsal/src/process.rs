//! What a process has around its features.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use anyhow::Result;
use cluster::{server::ListMode, watch::Watches};
use kube::Client;
use platform::{
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    metrics::Registry,
    readiness::Readiness,
};
use serde_json::Value;
use testbed::Cluster;
use tokio::{task::AbortHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// A process, so to speak. All that it runs ends with this value.
#[derive(Default)]
pub struct Process {
    /// What it counts.
    pub registry: Registry,
    tasks: Vec<AbortHandle>,
}

/// What features work with.
pub struct Means {
    /// Reads, and writes what anybody may who does not lead.
    pub reader: Client,
    /// Writes as the leader.
    pub client: FencedClient,
    /// Feeds caches with what is in the namespace, or in none.
    pub watches: Watches,
    /// Tells of decisions.
    pub recorder: Recorder,
}

impl Process {
    /// Starts anew, with nothing counted, as the account that the chart with these values makes in the namespace. It leads, and looks
    /// after this namespace alone, whose name its events have as that of the instance.
    pub async fn start(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        values: &Value,
        reporter: &'static str,
    ) -> Result<Means> {
        self.kill();
        self.registry = Registry::default();
        let kubeconfig = cluster.install_chart("claimkeeper", namespace, values).await?;
        let fence = Fence::new();
        fence.open_until(Instant::now() + Duration::from_hours(1));
        let config = client::load_config(Some(&kubeconfig))?;
        let options = ClientOptions::new(&self.registry);
        let reader = client::build(config.clone(), options.clone())?;
        let client = FencedClient::build(config, options, &fence)?;
        let watches = Watches {
            client: reader.clone(),
            namespace: Some(namespace.to_owned()),
            list_mode: ListMode::Streamed,
            readiness: Readiness::default(),
            registry: self.registry.clone(),
        };
        let (recorder, worker) = Recorder::new(reader.clone(), reporter, namespace, &self.registry);
        self.spawn(worker.run(CancellationToken::new()));
        Ok(Means { reader, client, watches, recorder })
    }

    /// Runs something until it ends, or the process does. Who has the handle can end it alone.
    pub fn spawn<F>(&mut self, task: F) -> AbortHandle
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let handle = tokio::spawn(task).abort_handle();
        self.tasks.push(handle.clone());
        handle
    }

    /// Runs something until the API server has answered a write to one of these resources, and well, and not an instruction longer.
    /// The process must not have written before.
    pub async fn until_first_write(&self, run: impl Future, resources: &[&str]) {
        let mut run = pin!(run);
        poll_fn(|context| {
            let ended = run.as_mut().poll(context).is_ready();
            if ended || self.has_written(resources) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn has_written(&self, resources: &[&str]) -> bool {
        let text = self.registry.encode();
        let mut requests = text.lines().filter_map(|line| line.strip_prefix("claimkeeper_api_requests_total{"));
        requests.any(|labels| {
            let is = |label: &str, values: &[&str]| {
                values.iter().any(|value| labels.contains(&format!("{label}=\"{value}\"")))
            };
            is("verb", &["create", "patch", "delete"])
                && is("code", &["200", "201", "202"])
                && is("resource", resources)
        })
    }

    /// Everything ends at once.
    pub fn kill(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }

    /// The value of the series whose line starts like this; 0 if there is none.
    #[must_use]
    pub fn metric(&self, series: &str) -> u64 {
        let text = self.registry.encode();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("it counts in whole numbers"))
    }

    /// All lines that start like this.
    #[must_use]
    pub fn metrics(&self, start: &str) -> Vec<String> {
        self.registry.encode().lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// How often a feature decided this.
    #[must_use]
    pub fn decided(&self, feature: &str, decision: &str, reason: &str) -> u64 {
        self.metric(&format!(r#"claimkeeper_{feature}_decisions_total{{decision="{decision}",reason="{reason}"}}"#))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
