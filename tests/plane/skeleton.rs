//! One parent, children in three scopes, created and torn down in order.

use control_plane::{Plane, audit::Verb};
use kube::{Api, api::ListParams};
use kube_custody::{
    custodian::Phase,
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
};

use crate::world::*;

#[tokio::test]
async fn children_in_three_scopes_come_and_go_in_order() {
    let admin = client().await;
    let home = new_namespace(&admin, "skeleton").await;
    let other = control_plane::fixtures::ns("skeleton-other");
    let (operator, log) = Plane::shared().await.audited("admin");
    let custodian = builder(operator).build().unwrap();

    let role = format!("skeleton-{home}");
    let desired = [
        namespace(&other),
        config_map(&home, "base", &[]),
        config_map(&other, "middle", &[&format!("/namespaces/{home}/ConfigMap/base")]),
        cluster_role(&role, &[&format!("/namespaces/{other}/ConfigMap/middle")]),
    ];
    let track = parent(&admin, &home, "track").await;
    let outcome = settle(&custodian, &admin, &track, &desired).await;
    assert_eq!(outcome.phase, Phase::Applied, "{outcome:#?}");
    for object in &desired {
        assert!(exists(&admin, object).await, "{:?}", object.metadata);
    }
    let owned = live(&admin, &desired[3]).await.unwrap();
    let owners = owned.metadata.owner_references.unwrap();
    assert_eq!((owners.len(), owners[0].kind.as_str()), (1, "ClusterGitTrackOwner"));
    assert!(live(&admin, &desired[1]).await.unwrap().metadata.owner_references.is_none(), "something depends on it");

    // Nothing to do: no write at all.
    log.clear();
    let again = settle(&custodian, &admin, &track, &desired).await;
    assert_eq!(again.phase, Phase::Applied);
    let writes = log.calls_where(|c| c.verb.writes());
    assert!(writes.is_empty(), "{writes:#?}");

    log.clear();
    delete(&admin, &track).await;
    let outcome = settle(&custodian, &admin, &track, &desired).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    let deleted: Vec<_> = log
        .calls_where(|c| c.verb == Verb::Delete && c.effective)
        .iter()
        .map(|c| format!("{} {}", c.target.plural, c.target.name.clone().unwrap_or_default()))
        .filter(|name| !name.starts_with("configmaps kube-custody") && !name.contains("inventory"))
        .collect();
    let position =
        |name: &str| deleted.iter().position(|d| d.contains(name)).unwrap_or_else(|| panic!("{name}: {deleted:?}"));
    assert!(position(&role) < position("configmaps middle"));
    assert!(position("configmaps middle") < position("configmaps base"));
    assert!(position("configmaps middle") < position(&format!("namespaces {other}")));
    for object in &desired {
        assert!(!exists(&admin, object).await, "{:?}", object.metadata);
    }
    let selector =
        ListParams::default().labels(&format!("{MANAGER}/parent-uid={}", track.metadata.uid.as_ref().unwrap()));
    assert!(Api::<GitTrackOwner>::all(admin.clone()).list(&selector).await.unwrap().items.is_empty());
    assert!(Api::<ClusterGitTrackOwner>::all(admin.clone()).list(&selector).await.unwrap().items.is_empty());
    assert!(reload(&admin, &track).await.is_none());
}
