//! Children that live behind another API server, as those of a vcluster do, or are made by another identity.

mod elsewhere;
mod identity;
mod outage;
mod together;

use std::sync::Arc;

use control_plane::{
    Plane,
    audit::{AuditLog, Call},
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use kube_custody::{
    custodian::{self, Builder, Hold, Outcome, Phase, Target, TargetKey, Unavailable},
    discovery,
    inventory::ClusterId,
    object::ObjectId,
};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::world::*;

const SECRET: &str = "credentials";

/// The plane that children live behind, for tests that do not stop it.
async fn remote() -> &'static Plane {
    static REMOTE: OnceCell<Plane> = OnceCell::const_new();
    REMOTE.get_or_init(async || Plane::builder().start().await.unwrap()).await
}

/// A plane that nothing should be sent to, unless a test says so.
async fn third() -> &'static Plane {
    static THIRD: OnceCell<Plane> = OnceCell::const_new();
    THIRD.get_or_init(async || Plane::builder().start().await.unwrap()).await
}

fn kubeconfig(plane: &Plane) -> Vec<u8> {
    std::fs::read(plane.kubeconfig()).unwrap()
}

async fn id_of(plane: &Plane) -> ClusterId {
    discovery::cluster_id(&plane.client()).await.unwrap()
}

/// Reads the parent's credentials at home and makes a client of them whose calls go into `log`.
async fn connect(home: Client, log: AuditLog, track: Arc<GitTrack>) -> Result<Target, Unavailable> {
    let namespace = track.namespace().unwrap();
    let id = ObjectId::new("", "Secret", Some(&namespace), SECRET).unwrap();
    let read = Api::<Secret>::namespaced(home, &namespace).get(SECRET).await;
    let secret = read.map_err(|error| Unavailable::reading(&id, &error))?;
    let text = secret.data.as_ref().and_then(|data| data.get("value"));
    let text = text.ok_or_else(|| Unavailable::new(format!("{id} has no key \"value\"")))?;
    let config = custodian::kubeconfig(&text.0).await?;
    let client = log.client(config).map_err(|_| Unavailable::new("no client can be made of it"))?;
    Ok(Target::remote(TargetKey::of_secret(&secret), client).hold(id))
}

/// One parent at home whose children live where its Secret leads.
struct Vcluster {
    scene: Scene,
    /// Calls to wherever the Secret leads.
    log: AuditLog,
    set: Vec<DynamicObject>,
}

impl Vcluster {
    async fn new(prefix: &str, plane: &Plane) -> Self {
        Self::with(prefix, plane, |b| b).await
    }

    async fn with(prefix: &str, plane: &Plane, options: impl Fn(Builder<GitTrack>) -> Builder<GitTrack>) -> Self {
        let log = AuditLog::new();
        let home = Plane::shared().await.client();
        let seen = log.clone();
        let hook = move |track| connect(home.clone(), seen.clone(), track);
        let scene = Scene::with(prefix, |b| options(b.target(hook))).await;
        let set = children(&scene.ns);
        let vcluster = Self { scene, log, set };
        let secret = Secret {
            metadata: kube::core::ObjectMeta { name: Some(SECRET.into()), ..Default::default() },
            data: Some([("value".to_owned(), ByteString(kubeconfig(plane)))].into()),
            ..Secret::default()
        };
        vcluster.secrets().create(&PostParams::default(), &secret).await.unwrap();
        vcluster
    }

    async fn applied(prefix: &str, plane: &Plane) -> Self {
        let vcluster = Self::new(prefix, plane).await;
        vcluster.scene.apply(&vcluster.set).await;
        vcluster
    }

    /// Another operator process, after the first one is gone.
    fn restart(&mut self) {
        let (home, seen) = (self.scene.admin.clone(), self.log.clone());
        self.scene.restart(|b| b.target(move |track| connect(home.clone(), seen.clone(), track)));
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.ns)
    }

    /// Puts another kubeconfig into the Secret.
    async fn point_to(&self, kubeconfig: &[u8]) {
        let data = json!({"data": {"value": ByteString(kubeconfig.to_vec())}});
        self.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(data)).await.unwrap();
    }

    async fn pass(&self) -> Outcome {
        self.scene.pass(&self.set).await
    }

    /// One pass, in which nothing at all is written where the Secret leads, and the parent is held.
    async fn held(&self) -> Hold {
        self.log.clear();
        let outcome = self.pass().await;
        assert_eq!(self.writes(), Vec::<String>::new());
        assert!(outcome.requeue.is_some(), "{outcome:#?}");
        match outcome.phase {
            Phase::Held(hold) => hold,
            _ => panic!("{outcome:#?}"),
        }
    }

    /// Calls that were to change something where the Secret leads.
    fn writes(&self) -> Vec<String> {
        self.log.calls_where(|c: &Call| c.head.verb.writes()).iter().map(ToString::to_string).collect()
    }

    /// Whether the children exist in a cluster, in the set's order.
    async fn present(&self, plane: &Plane) -> Vec<bool> {
        let client = plane.client();
        let mut present = Vec::new();
        for object in &self.set {
            present.push(exists(&client, object).await);
        }
        present
    }

    async fn parent_is_gone(&self) -> bool {
        reload(&self.scene.admin, &self.scene.track).await.is_none()
    }

    /// Reconciles until the parent is let go.
    async fn finish(&self) {
        settle_deleted(&self.scene.custodian, &self.scene.admin, &self.scene.track, &self.set).await;
    }
}

/// A namespace, an object in it, and what that depends on in cluster scope. All are called after `name`.
fn children(name: &str) -> Vec<DynamicObject> {
    let (space, role) = (format!("{name}-there"), format!("base-{name}"));
    vec![
        namespace(&space),
        cluster_role(&role, &[]),
        config_map(&space, "leaf", &[&format!("rbac.authorization.k8s.io/ClusterRole/{role}")]),
    ]
}
