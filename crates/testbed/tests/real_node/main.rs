//! A real node: pods that run, write, listen and talk, and a machine that is afterwards what it was before.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testbed::{BUSYBOX, Cluster, Component, ControlPlane, Image, Options, eventually, within};

/// Holds the turn until it is dropped: a whole cluster at a time is enough for a small machine, and what one leaves could hide
/// behind another. None, with the reason printed, where no real node can run.
async fn turn() -> Result<Option<File>> {
    if let Some(reason) = testbed::real_node_unavailable().await {
        eprintln!("skipped: {reason}");
        return Ok(None);
    }
    // A file, because a test runner may give every test a process of its own.
    let turn = File::create(testbed::cache_directory()?.join("real-node-tests.lock"))?;
    tokio::task::spawn_blocking(move || turn.lock().map(|()| turn)).await?.map(Some).context("cannot wait for the turn")
}

/// Runs kubectl to its end and returns what it printed.
async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.kubectl();
    command.args(arguments);
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {} failed: {}", arguments.join(" "), complaint.trim());
    Ok(String::from_utf8(output.stdout)?)
}

async fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let file = cluster.directory().join("objects.json");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(&file, list.to_string())?;
    kubectl(cluster, &["apply", "-f", file.to_str().context("an odd path")?]).await.map(drop)
}

fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": BUSYBOX, "command": ["sh", "-c", script] }],
        },
    })
}

async fn expect_phase(cluster: &Cluster, pod: &str, phase: &str) -> Result<()> {
    let found = kubectl(cluster, &["get", "pod", pod, "-o", "jsonpath={.status.phase}"]).await?;
    ensure!(found == phase, "the pod is {found}");
    Ok(())
}

#[tokio::test]
async fn real_pods_write_through_claims_and_answer_to_logs_exec_and_services() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let started = Instant::now();
    let cluster = ControlPlane::start(Options::default().real_node()).await?;

    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "testbed-wait",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let mut web = pod("web", "echo from the volume > /data/page; echo serving; exec httpd -f -p 8080 -h /data");
    web["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    apply(&cluster, &[claim, web, service]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "web", "Running").await).await?;
    eprintln!("a pod runs {:.1} s after the start", started.elapsed().as_secs_f32());

    eventually("the log", async || {
        let log = kubectl(&cluster, &["logs", "web"]).await?;
        ensure!(log == "serving\n", "{log:?}");
        Ok(())
    })
    .await?;
    assert_eq!(kubectl(&cluster, &["exec", "web", "--", "cat", "/data/page"]).await?, "from the volume\n");

    let volume = kubectl(&cluster, &["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]).await?;
    let directory = kubectl(&cluster, &["get", "pv", &volume, "-o", "jsonpath={.spec.local.path}"]).await?;
    assert_eq!(fs::read_to_string(Path::new(&directory).join("page"))?, "from the volume\n");

    let address = kubectl(&cluster, &["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let script = format!("until wget -q -O - http://{address}/page; do :; done");
    apply(&cluster, &[pod("client", &script)]).await?;
    eventually("the client to get its answer", async || expect_phase(&cluster, "client", "Succeeded").await).await?;
    assert_eq!(kubectl(&cluster, &["logs", "client"]).await?, "from the volume\n");

    kubectl(&cluster, &["delete", "pod/web", "pvc/data"]).await?;
    eventually("the volume's directory to go", async || {
        ensure!(!Path::new(&directory).exists(), "it is there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_program_of_this_machine_runs_from_an_image_made_of_it() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let cluster = ControlPlane::start(Options::default().real_node().provisioner(false)).await?;
    let image = Image::of_program("docker.io/testbed/uname:1", Path::new("/bin/uname"))?;
    cluster.import_image(&image).await?;
    let mut named = pod("named", "");
    named["spec"]["containers"][0] = json!({ "name": "main", "image": image.name(), "args": ["-n"] });
    apply(&cluster, &[named]).await?;
    eventually("the program to end well", async || expect_phase(&cluster, "named", "Succeeded").await).await?;
    assert_eq!(kubectl(&cluster, &["logs", "named"]).await?, "named\n");

    // The node outlives its kubelet, and the kubelet that comes back finds the pods that ran on without it.
    apply(&cluster, &[pod("patient", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "patient", "Running").await).await?;
    cluster.kill(Component::Kubelet(1))?;
    cluster.start_component(Component::Kubelet(1)).await?;
    eventually("exec", async || kubectl(&cluster, &["exec", "patient", "--", "true"]).await).await?;
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    assert_eq!(kubectl(&cluster, &["get", "pod", "patient", "-o", restarts]).await?, "0");
    Ok(())
}

/// By what a cluster with a real node can be recognized on this machine.
#[derive(Debug)]
struct Traces {
    directory: PathBuf,
    network: Option<PathBuf>,
    cgroups_before: BTreeSet<PathBuf>,
}

impl Traces {
    fn expected_in(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), network: None, cgroups_before: cgroups() }
    }

    fn of_network(mut self, keeper: u32) -> Result<Self> {
        self.network = Some(fs::read_link(format!("/proc/{keeper}/ns/net"))?);
        ensure!(self.found().len() >= 4, "a running cluster leaves more traces than {:?}", self.found());
        Ok(self)
    }

    /// Processes, mounts, namespaces, control groups and files that are there.
    fn found(&self) -> Vec<String> {
        let directory = self.directory.display().to_string();
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
            let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
            let mentions = |file: &str| String::from_utf8_lossy(&read(file)).contains(&directory);
            if process.join("ns").exists() && process != Path::new(&format!("/proc/{}", std::process::id())) {
                if mentions("cmdline") {
                    found.push(format!("process {}", process.display()));
                }
                if mentions("mountinfo") {
                    found.push(format!("mounts of {}", process.display()));
                }
                if self.network.is_some() && fs::read_link(process.join("ns/net")).ok() == self.network {
                    found.push(format!("network of {}", process.display()));
                }
            }
        }
        found.extend(cgroups().difference(&self.cgroups_before).map(|path| path.display().to_string()));
        found.extend(self.directory.exists().then_some(directory));
        found
    }

    async fn expect_none(&self) -> Result<()> {
        within(Duration::from_secs(30), "all traces to go", async || {
            let found = self.found();
            ensure!(found.is_empty(), "{found:?}");
            Ok(())
        })
        .await
    }
}

fn cgroups() -> BTreeSet<PathBuf> {
    let below = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let root = Path::new("/sys/fs/cgroup");
    let groups = below(root).flat_map(|path| below(&path).chain([path]).collect::<Vec<_>>());
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("claimkeeper-"));
    groups.filter(is_ours).collect()
}

#[tokio::test]
async fn a_cluster_that_is_dropped_leaves_nothing() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let cluster = ControlPlane::start(Options::default().real_node().directory(&traces.directory)).await?;
    let traces = traces.of_network(cluster.keeper().context("no keeper")?)?;
    apply(&cluster, &[pod("app", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "app", "Running").await).await?;
    tokio::task::spawn_blocking(|| drop(cluster)).await?;
    let found = traces.found();
    assert!(found.is_empty(), "everything goes before drop returns, but there is {found:?}");
    Ok(())
}

#[tokio::test]
async fn a_panic_leaves_nothing() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let options = Options::default().real_node().directory(&traces.directory);
    let (send_keeper, keeper) = tokio::sync::oneshot::channel();
    let (let_go, may_panic) = tokio::sync::oneshot::channel::<()>();
    let owner = tokio::task::LocalSet::new();
    let task = owner.spawn_local(async move {
        let cluster = ControlPlane::start(options).await.unwrap();
        send_keeper.send(cluster.keeper()).unwrap();
        may_panic.await.unwrap();
        panic!("on purpose, with a cluster in hand");
    });
    owner
        .run_until(async {
            let traces = traces.of_network(keeper.await?.context("no keeper")?)?;
            let_go.send(()).ok().context("it ended before its time")?;
            ensure!(task.await.is_err_and(|ended| ended.is_panic()), "it did not panic");
            traces.expect_none().await
        })
        .await
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let options = Options::default().real_node().directory(&traces.directory).scheduler_flag("--no-such-flag");
    let Err(error) = ControlPlane::start(options).await else { bail!("it started with a flag that does not exist") };
    assert!(format!("{error:#}").contains("no-such-flag"), "{error:#}");
    traces.expect_none().await
}

#[tokio::test]
async fn a_parent_that_is_killed_leaves_nothing() -> Result<()> {
    let Some(_turn) = turn().await? else { return Ok(()) };
    let before = Traces::expected_in(Path::new("/nowhere"));
    let mut parent =
        Command::new(env!("CARGO_BIN_EXE_testbed-control-plane")).arg("--real-node").stdout(Stdio::piped()).spawn()?;
    let output = parent.stdout.take().context("no output")?;
    let line = tokio::task::spawn_blocking(move || BufReader::new(output).lines().next()).await?;
    let directory = PathBuf::from(line.context("it ended without a word")??);
    let cluster = Cluster::attach(&directory)?;
    let keeper = cluster.keeper().context("no keeper")?;
    let traces = Traces { directory, ..before }.of_network(keeper)?;
    apply(&cluster, &[pod("app", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "app", "Running").await).await?;
    // Stopped, its kubelet notices nothing by itself.
    let kubelet = cluster.pid(Component::Kubelet(1)).and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    kill_process(kubelet.context("no kubelet")?, Signal::STOP)?;
    parent.kill()?;
    parent.wait()?;
    traces.expect_none().await
}
