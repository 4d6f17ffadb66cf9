//! The CI build is over. Its volume is kept, and goes to the next build once its class says so, with what is on it.

use std::path::Path;

use anyhow::Result;

use super::{
    Stage,
    provisioner::{CLAIM, CLASS, NAMESPACE, pod},
    title,
};

const NEXT_CLAIM: &str = "build-cache-18";

impl Stage {
    pub(super) async fn the_volume_of_the_ci_pod_is_kept(&self, operator: &Path) -> Result<String> {
        title("releaser: the build is over; its volume stays Released for as long as its class says");
        let policy = ["claimkeeper.dev/release=pool", "claimkeeper.dev/release-after=1h"];
        self.present(&[&["annotate", "storageclass", CLASS][..], &policy].concat()).await?;
        let volume = ["--namespace", NAMESPACE, "get", "pvc", CLAIM, "-o", "jsonpath={.spec.volumeName}"];
        let volume = String::from_utf8(self.kubectl(&volume).await?.stdout)?;
        self.present(&["--namespace", NAMESPACE, "delete", "pod", "build"]).await?;
        let phase = ["get", "pv", &volume, "-o", "jsonpath={.status.phase}"];
        self.until("the volume to be Released", &phase, "Released").await?;
        self.ask_why(operator, &[&format!("pv/{volume}")]).await?;
        Ok(volume)
    }

    pub(super) async fn the_next_ci_pod_has_that_volume(&self, volume: &str) -> Result<()> {
        title(
            "releaser: the class says it need not wait, so the next build has the volume, and reads what the first one wrote",
        );
        self.present(&["annotate", "--overwrite", "storageclass", CLASS, "claimkeeper.dev/release-after=0s"]).await?;
        let phase = ["get", "pv", volume, "-o", "jsonpath={.status.phase}"];
        self.until("the volume to be Available", &phase, "Available").await?;
        self.apply(&pod("next-build", NEXT_CLAIM, "true")).await?;
        println!("  $ kubectl --namespace {NAMESPACE} apply -f next-build.yaml\n");
        let running = ["--namespace", NAMESPACE, "get", "pod", "next-build", "-o", "jsonpath={.status.phase}"];
        self.until("the next build to run", &running, "Running").await?;
        let columns = "custom-columns=VOLUME:.metadata.name,STATUS:.status.phase,CLAIM:.spec.claimRef.name,\
                       BEFORE:.metadata.annotations.claimkeeper\\.dev/previous-claim";
        self.present(&["get", "pv", volume, "-o", columns]).await?;
        if self.has_real_node {
            self.present(&["--namespace", NAMESPACE, "exec", "next-build", "--", "cat", "/cache/note"]).await?;
        }
        Ok(())
    }
}
