//! Children at home that a tenant's identity creates and deletes.

use control_plane::fixtures;
use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::api::DeleteParams;

use super::*;

/// kapp #579, flux2 #997: the identity that cleanup acts as goes before the cleanup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_the_identity_that_children_are_deleted_as_is_held_until_they_are_gone() {
    let plane = Plane::shared().await;
    let log = AuditLog::new();
    let calls = log.clone();
    let hook = move |track: Arc<GitTrack>| {
        let namespace = track.namespace().unwrap();
        let user = format!("system:serviceaccount:{namespace}:tenant");
        let mut config = plane.config();
        config.auth_info.impersonate = Some(user.clone());
        let client = calls.client(config).unwrap();
        let held = ["ServiceAccount", "Role.rbac.authorization.k8s.io", "RoleBinding.rbac.authorization.k8s.io"];
        let target = held.iter().fold(Target::impersonating(user, client), |target, kind| {
            target.hold(id(&format!("{kind} {namespace}/tenant")))
        });
        std::future::ready(Ok(target))
    };
    let scene = Scene::with("vc-tenant", |b| b.target(hook)).await;
    let accounts = Api::<ServiceAccount>::namespaced(scene.admin.clone(), &scene.ns);
    let roles = Api::<Role>::namespaced(scene.admin.clone(), &scene.ns);
    let bindings = Api::<RoleBinding>::namespaced(scene.admin.clone(), &scene.ns);

    // Nothing is created by an identity that cannot be held.
    let set = [scene.map("base", &[]), scene.map("leaf", &["base"]), cluster_role(&format!("vc-{}", scene.ns), &[])];
    let outcome = scene.pass(&set).await;
    assert!(matches!(outcome.phase, Phase::Held(Hold::TargetUnavailable { .. })), "{outcome:#?}");
    assert_eq!(scene.present(&set).await, [false; 3]);

    let named = json!({"metadata": {"name": "tenant"}});
    fixtures::create(&accounts, named).await;
    let verbs = ["get", "list", "watch", "create", "patch", "delete"];
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    fixtures::create(&roles, json!({"metadata": {"name": "tenant"}, "rules": rules})).await;
    let subject = json!([{"kind": "ServiceAccount", "name": "tenant", "namespace": scene.ns}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"});
    fixtures::create(&bindings, json!({"metadata": {"name": "tenant"}, "roleRef": role, "subjects": subject})).await;

    let outcome = scene.until("the tenant does what it may", &set, |o| o.applied.len() == 2).await;
    let refused = problem(&outcome, &format!("vc-{}", scene.ns));
    assert!(matches!(refused, Some(custodian::Problem::Refused { .. })), "{outcome:#?}");
    assert!(live_proxies(&scene.admin, &scene.track).await.0.is_empty(), "the tenant has no rights on proxies");
    assert_eq!(scene.inventory().await.cluster, id_of(plane).await);

    patch(&scene.admin, &set[1], json!({"metadata": {"finalizers": ["x.example.com/slow"]}})).await;
    scene.delete().await;
    accounts.delete("tenant", &DeleteParams::default()).await.unwrap();
    bindings.delete("tenant", &DeleteParams::default()).await.unwrap();
    roles.delete("tenant", &DeleteParams::default()).await.unwrap();
    scene.until("the leaf is waited for", &set, |o| blocker(o, "leaf").is_some()).await;
    assert!(bindings.get("tenant").await.unwrap().metadata.deletion_timestamp.is_some());
    patch(&scene.admin, &set[1], json!({"metadata": {"finalizers": null}})).await;
    // What the tenant may not even look at is not proven absent: somebody has to decide.
    let role = format!("vc-{}", scene.ns);
    let stuck = scene.until("the rest is gone", &set, |o| o.removal.gone.len() == 2).await;
    assert_eq!(blocker(&stuck, &role).unwrap().reason, kube_custody::teardown::Reason::Forbidden);
    scene.custodian.abandon(&scene.track, &ObjectId::of(&set[2]).unwrap()).await.unwrap();
    settle_deleted(&scene.custodian, &scene.admin, &scene.track, &set).await;
    assert_eq!(scene.present(&set).await, [false; 3]);
    fixtures::gone(accounts, "tenant").await;
    fixtures::gone(bindings, "tenant").await;
    fixtures::gone(roles, "tenant").await;
    assert_eq!(deletions(&log).len(), 2, "the tenant deleted its own: {:?}", deletions(&log));
    assert!(deletions(&scene.log).is_empty(), "and the operator nothing: {:?}", deletions(&scene.log));
    Api::<Namespace>::all(scene.admin.clone()).delete(&scene.ns, &DeleteParams::default()).await.unwrap();
}
