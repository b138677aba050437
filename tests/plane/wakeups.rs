//! A child that changes or goes wakes its parent, inside of a real controller.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use control_plane::fixtures;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    core::PartialObjectMeta,
    runtime::{Controller, controller::Action, watcher},
};
use kube_custody::custodian::{Custodian, Desired};

use crate::world::*;

struct Context {
    custodian: Custodian<GitTrack>,
    home: String,
    passes: AtomicUsize,
}

async fn reconcile(track: Arc<GitTrack>, context: Arc<Context>) -> Result<Action, kube_custody::custodian::Error> {
    context.passes.fetch_add(1, Ordering::SeqCst);
    let home = context.home.clone();
    let outcome = context
        .custodian
        .reconcile(&*track, async move |_: Arc<GitTrack>| {
            Ok::<_, std::io::Error>(Desired::from(vec![config_map(&home, "child", &[])]))
        })
        .await;
    outcome.into_action()
}

async fn a_deleted_child_comes_back(mapped: bool) {
    let admin = client().await;
    let home = new_namespace(&admin, "wakeups").await;
    let custodian = builder(admin.clone()).build().unwrap();
    let config = watcher::Config::default().fields("metadata.name=track");
    let mut controller = Controller::new(Api::<GitTrack>::namespaced(admin.clone(), &home), config);
    if mapped {
        let children = Api::<PartialObjectMeta<ConfigMap>>::all(admin.clone());
        let labelled = watcher::Config::default().labels(&custodian.manager().parent_label());
        controller = controller.watches(children, labelled, custodian.mapper());
    } else {
        let wakeups = custodian.wakeups().map(|w| w.object_ref::<GitTrack>());
        controller = controller.reconcile_on(wakeups);
    }
    let context = Arc::new(Context { custodian, home: home.clone(), passes: AtomicUsize::new(0) });
    let running = controller.run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::clone(&context));
    let running = tokio::spawn(running.for_each(|_| async {}));

    let track = parent(&admin, &home, "track").await;
    let children = Api::<ConfigMap>::namespaced(admin.clone(), &home);
    let first = fixtures::eventually("the child", async || children.get_opt("child").await.unwrap()).await;
    children.delete("child", &kube::api::DeleteParams::default()).await.unwrap();
    let second = fixtures::eventually("the child again", async || {
        children.get_opt("child").await.unwrap().filter(|c| c.uid() != first.uid())
    })
    .await;
    assert_ne!(first.uid(), second.uid());

    delete(&admin, &track).await;
    fixtures::eventually("the end", async || reload(&admin, &track).await.is_none().then_some(())).await;
    assert!(children.get_opt("child").await.unwrap().is_none());
    assert!(context.passes.load(Ordering::SeqCst) >= 3);
    running.abort();
}

#[tokio::test]
async fn wakeups_bring_a_deleted_child_back() {
    a_deleted_child_comes_back(false).await;
}

#[tokio::test]
async fn the_mapper_brings_a_deleted_child_back() {
    a_deleted_child_comes_back(true).await;
}
