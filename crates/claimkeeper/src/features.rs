//! The features that run, with what each of them is given.

use std::sync::Arc;

use cluster::{slice::WITHOUT_SELECTOR, watch::Watches};
use enforcement::{Enforcement, audit::Audit};
use ephemeral::{
    Ephemeral,
    reclaim::{self, Reclaim},
};
use futures::future::join_all;
use kube::{Client, Config as KubeConfig};
use placement::{Placement, Steering};
use platform::{
    admission::{AdmissionServer, Webhook},
    client::{self, ClientOptions, FencedClient},
    events::Recorder,
    metrics::Registry,
};
use provisioner::Provisioner;
use releaser::{Releaser, Scrub, scrub::SCRUB};
use shared_volumes::{SharedVolumes, StorageOs, names::VOLUME_ID};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Feature},
    stores::Stores,
};

/// What features work with.
pub(crate) struct Tools {
    /// Reads.
    pub(crate) client: Client,
    /// Writes, while this replica leads.
    pub(crate) writer: FencedClient,
    /// Tells.
    pub(crate) recorder: Recorder,
    /// Counts.
    pub(crate) registry: Registry,
}

/// The features that run, and what they look at.
pub(crate) struct Features {
    stores: Stores,
    ephemeral: Option<Ephemeral>,
    reclaim: Option<Reclaim>,
    provisioner: Option<Provisioner>,
    releaser: Option<Releaser>,
    enforcement: Option<Arc<Enforcement>>,
    audit: Option<Audit>,
    placement: Option<Placement>,
    steering: Option<Arc<Steering>>,
    shared_volumes: Option<SharedVolumes>,
}

impl Features {
    /// `home` is the operator's own namespace; `admission` is there if API servers ask.
    pub(crate) fn new(
        config: &Config,
        kube: &KubeConfig,
        home: &str,
        admission: Option<&AdmissionServer>,
        tools: &Tools,
    ) -> anyhow::Result<Self> {
        let Tools { client, writer, recorder, registry } = tools;
        let runs = |feature| config.features.contains(&feature);
        let reclaim = config.ephemeral.reclaim().filter(|_| runs(Feature::Ephemeral));
        let stores = Stores::new(config, reclaim.is_some());
        let Stores { pods, claims, classes, namespaces, volumes, nodes } = &stores;
        let reclaim = reclaim.map(|settings| {
            let caches = reclaim::Caches::beside(pods, claims, classes);
            Reclaim::new(caches, writer.clone(), recorder.clone(), registry, settings)
        });
        let provisioner = runs(Feature::Provisioner).then(|| {
            let caches = provisioner::Caches { pods: pods.clone(), claims: claims.clone() };
            let (writer, reader, recorder) = (writer.clone(), client.clone(), recorder.clone());
            Provisioner::new(caches, writer, reader, recorder, registry, config.provisioner.settings())
        });
        let releaser = runs(Feature::Releaser).then(|| {
            let caches = releaser::Caches {
                volumes: volumes.clone(),
                claims: claims.clone(),
                classes: classes.clone(),
                namespaces: namespaces.clone(),
            };
            let settings = config.releaser.settings(config.namespace.as_deref());
            let releaser = Releaser::new(caches, writer.clone(), recorder.clone(), registry, settings);
            if config.releaser.scrub { releaser.with_scrub(Scrub::new(home)) } else { releaser }
        });
        // Its requests must not wait behind the controllers' work.
        let reader_of = |server: &AdmissionServer| {
            let _guard = server.enter();
            client::build(kube.clone(), ClientOptions { retry: false, ..ClientOptions::new(registry) })
        };
        let enforces = runs(Feature::Enforcement).then(|| enforcement::Caches {
            pods: pods.clone(),
            classes: classes.clone(),
            namespaces: namespaces.clone(),
            volumes: volumes.clone(),
        });
        let asked = admission.filter(|_| config.enforcement.claim_webhook);
        let enforcement = asked.zip(enforces.clone()).map(|(server, caches)| {
            // Where a kubeconfig names no namespace it is `default`: that is nobody's own.
            let home = Some(home.to_owned()).filter(|home| home != "default");
            let settings = enforcement::Settings { home, ..config.enforcement.clone() };
            anyhow::Ok(Arc::new(Enforcement::new(caches, settings, reader_of(server)?, recorder.clone(), registry)))
        });
        let enforcement = enforcement.transpose()?;
        let audit = enforces.map(|caches| {
            let settings = enforcement::Settings { home: Some(home.to_owned()), ..config.enforcement.clone() };
            Audit::new(client.clone(), caches, Arc::new(settings), config.namespace.clone(), registry)
        });
        let placement = runs(Feature::Placement).then(|| placement::Context {
            caches: placement::Caches {
                pods: pods.clone(),
                claims: claims.clone(),
                classes: classes.clone(),
                volumes: volumes.clone(),
                nodes: nodes.clone(),
            },
            client: writer.clone(),
            recorder: recorder.clone(),
            settings: Arc::new(config.placement_settings()),
            registry: registry.clone(),
            counts: placement::Counts::new(registry),
        });
        let steering = admission.zip(placement.as_ref()).filter(|_| config.placement.pod_webhook);
        let steering = steering.map(|(server, context)| {
            let (caches, settings, recorder) =
                (context.caches.clone(), Arc::clone(&context.settings), recorder.clone());
            anyhow::Ok(Arc::new(Steering::new(caches, settings, reader_of(server)?, recorder, registry)))
        });
        let (steering, placement) = (steering.transpose()?, placement.as_ref().map(Placement::new));
        let ephemeral = runs(Feature::Ephemeral).then(|| {
            let caches = ephemeral::Caches::beside(pods, claims, namespaces);
            Ephemeral::new(caches, writer.clone(), recorder.clone(), registry, config.ephemeral.concurrency)
        });
        let shared_volumes = runs(Feature::SharedVolumes).then(|| {
            let source = StorageOs::new(config.shared_volumes.storageos(), registry);
            let source = source.map_err(|why| anyhow::anyhow!("sharedVolumes.storageos: {why}"))?;
            let caches = shared_volumes::Caches::beside(claims);
            let settings = config.shared_volumes.settings(config.namespace.as_deref());
            let (writer, recorder) = (writer.clone(), recorder.clone());
            anyhow::Ok(SharedVolumes::new(caches, Arc::new(source), writer, recorder, registry, settings))
        });
        let shared_volumes = shared_volumes.transpose()?;
        Ok(Self {
            stores,
            ephemeral,
            reclaim,
            provisioner,
            releaser,
            enforcement,
            audit,
            placement,
            steering,
            shared_volumes,
        })
    }

    /// Those that API servers ask.
    pub(crate) fn webhooks(&self) -> Vec<Arc<dyn Webhook>> {
        let enforcement = self.enforcement.iter().map(|feature| Arc::clone(feature) as Arc<dyn Webhook>);
        enforcement.chain(self.steering.iter().map(|feature| Arc::clone(feature) as Arc<dyn Webhook>)).collect()
    }

    /// What they want to know of the server before anything else.
    pub(crate) async fn prepare(&self, client: &Client) -> anyhow::Result<()> {
        if let Some(releaser) = &self.releaser {
            releaser.check_rights().await.map_err(|error| anyhow::anyhow!("{error}"))?;
        }
        if let Some(enforcement) = &self.enforcement {
            enforcement.introduce(client).await;
        }
        Ok(())
    }

    /// What they do while this replica leads, until they are to stop and what they have begun is finished.
    pub(crate) async fn act(&self, stopping: &CancellationToken) {
        let make = self.ephemeral.iter().map(|feature| feature.run(stopping.clone()));
        let free = self.reclaim.iter().map(|feature| feature.run(stopping.clone()));
        let provision = self.provisioner.iter().map(|feature| feature.run(stopping.clone()));
        let release = self.releaser.iter().map(|feature| feature.run(stopping.clone()));
        let audit = self.audit.iter().map(|audit| audit.run(stopping.clone()));
        let place = self.placement.iter().map(|feature| feature.run(stopping.clone()));
        let share = self.shared_volumes.iter().map(|feature| feature.run(stopping.clone()));
        tokio::join!(
            join_all(make),
            join_all(free),
            join_all(provision),
            join_all(release),
            join_all(audit),
            join_all(place),
            join_all(share)
        );
    }

    /// One watch per kind that they need.
    pub(crate) fn feed(&self, watches: &Watches) -> JoinSet<()> {
        let Self { stores, ephemeral, reclaim, provisioner, releaser, audit, placement, shared_volumes, .. } = self;
        let (enforces, places) = (audit.is_some(), placement.is_some());
        let mut feeds = JoinSet::new();
        if ephemeral.is_some() || provisioner.is_some() || releaser.is_some() || places || shared_volumes.is_some() {
            feeds.spawn(watches.feed(&stores.claims));
        }
        if ephemeral.is_some() || provisioner.is_some() || enforces || places {
            feeds.spawn(watches.feed(&stores.pods));
        }
        if ephemeral.is_some() || enforces || releaser.as_ref().is_some_and(Releaser::watches_namespaces) {
            feeds.spawn(watches.feed_namespaces(&stores.namespaces));
        }
        if reclaim.is_some() || releaser.is_some() || enforces || places {
            feeds.spawn(watches.feed_cluster_scoped(&stores.classes));
        }
        if releaser.is_some() || enforces || places {
            feeds.spawn(watches.feed_cluster_scoped(&stores.volumes));
        }
        if places {
            feeds.spawn(watches.feed_cluster_scoped(&stores.nodes));
        }
        if let Some(scrub) = releaser.as_ref().and_then(Releaser::scrubs) {
            feeds.spawn(watches.feed_labelled(scrub.namespace(), SCRUB, scrub.jobs()));
        }
        if let Some(ephemeral) = ephemeral {
            feeds.spawn(watches.feed(&ephemeral.caches().quotas));
        }
        if let Some(reclaim) = reclaim {
            feeds.spawn(watches.feed_cluster_scoped(&reclaim.caches().drivers));
            feeds.spawn(watches.feed_cluster_scoped(&reclaim.caches().attachments));
        }
        if let Some(shared_volumes) = shared_volumes {
            feeds.spawn(watches.feed_selected(VOLUME_ID, &shared_volumes.caches().services));
            feeds.spawn(watches.feed_selected(WITHOUT_SELECTOR, &shared_volumes.caches().slices));
            if shared_volumes.keeps_endpoints() {
                feeds.spawn(watches.feed_selected(VOLUME_ID, &shared_volumes.caches().endpoints));
            }
        }
        feeds
    }
}
