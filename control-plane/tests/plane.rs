//! The life of a control plane: start, restart of parts, and an end that leaves nothing behind.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use control_plane::{Controllers, Error, Part, Pids, Plane, fixtures};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

async fn start() -> Plane {
    Plane::builder().start().await.unwrap()
}

fn maps(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

/// An owner, and a child of it in the same namespace.
async fn family(maps: &Api<ConfigMap>) -> (ConfigMap, ConfigMap) {
    let owner = fixtures::create(maps, json!({"metadata": {"name": "owner"}})).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid()});
    let child = json!({"metadata": {"name": "child", "ownerReferences": [reference]}});
    (owner, fixtures::create(maps, child).await)
}

/// Whether a process runs. One that has ended and is not yet reaped does not.
fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn all(pids: &Pids) -> Vec<u32> {
    pids.parts.values().copied().chain([pids.supervisor]).collect()
}

async fn all_dead(pids: &[u32]) {
    fixtures::eventually_ok("all processes have ended", async || {
        let left: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} run")) }
    })
    .await;
}

fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[tokio::test]
async fn starts_serves_and_leaves_nothing() {
    let plane = start().await;
    let version = plane.client().apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
    assert!(plane.started_in() < Duration::from_secs(60));
    assert!(plane.kubeconfig().is_file());

    let namespace = fixtures::namespace(&plane.client(), "start").await;
    let (_, child) = family(&maps(&plane.client(), &namespace)).await;
    plane.gc_quiet().await.unwrap();
    assert!(plane.graph_has(&child.uid().unwrap()).await.unwrap());
    assert!(!plane.graph_has("no-such-uid").await.unwrap());

    let (pids, state) = (all(&plane.pids()), plane.state().to_owned());
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| alive(*pid)));
    plane.shutdown().await.unwrap();
    assert!(!pids.iter().any(|pid| alive(*pid)), "shutdown waits for all processes");
    assert!(!state.exists());
    assert!(!state.with_extension("lock").exists());
}

#[tokio::test]
async fn restarted_garbage_collector_collects_what_was_orphaned_meanwhile() {
    let plane = start().await;
    let namespace = fixtures::namespace(&plane.client(), "gc").await;
    let maps = maps(&plane.client(), &namespace);
    let (_, child) = family(&maps).await;
    plane.gc_quiet().await.unwrap();

    let before = plane.pids();
    plane.kill(Part::Controllers).await.unwrap();
    assert!(!plane.pids().parts.contains_key(&Part::Controllers));
    assert!(!alive(before.parts[&Part::Controllers]));
    plane.graph_has("x").await.expect_err("nobody is there to answer");
    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(maps.get("child").await.unwrap().uid(), child.uid(), "nobody collects");

    plane.restart_garbage_collector().await.unwrap();
    fixtures::gone(maps, "child").await;
    plane.gc_quiet().await.unwrap();
    assert!(!plane.graph_has(&child.uid().unwrap()).await.unwrap());

    // And a second time, from the running state.
    let first = plane.pids().parts[&Part::Controllers];
    plane.restart_garbage_collector().await.unwrap();
    assert_ne!(plane.pids().parts[&Part::Controllers], first);
    assert!(!alive(first));
}

#[tokio::test]
async fn objects_survive_the_restart_of_etcd_and_apiserver() {
    let plane = start().await;
    let namespace = fixtures::namespace(&plane.client(), "restart").await;
    let maps = maps(&plane.client(), &namespace);
    let (owner, _) = family(&maps).await;
    for part in [Part::Etcd, Part::Apiserver] {
        plane.kill(part).await.unwrap();
        plane.start_part(part).await.unwrap();
        let found = fixtures::eventually_ok("the object is back", async || maps.get("owner").await).await;
        assert_eq!(found.uid(), owner.uid());
    }
    // The watches of the garbage collector have recovered as well.
    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    fixtures::gone(maps, "child").await;
}

#[tokio::test]
async fn a_paused_part_answers_after_it_is_resumed() {
    let plane = start().await;
    let maps = maps(&plane.client(), "default");
    let list = ListParams::default();
    maps.list(&list).await.unwrap();
    plane.pause(Part::Apiserver).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(500), maps.list(&list)).await;
    assert!(answer.is_err(), "no answer while it is stopped");
    plane.resume(Part::Apiserver).await.unwrap();
    maps.list(&list).await.unwrap();
    // A stopped part dies with the rest.
    plane.pause(Part::Controllers).await.unwrap();
    let pids = all(&plane.pids());
    plane.shutdown().await.unwrap();
    assert!(!pids.iter().any(|pid| alive(*pid)));
}

#[tokio::test]
async fn commands_are_checked_and_do_not_mix() {
    let plane = start().await;
    let refused = plane.start_part(Part::Etcd).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert!(matches!(plane.kill(Part::Workloads).await, Err(Error::Refused { .. })));
    // Several tasks at once: each gets its own answer.
    let (controllers, apiserver, refused) =
        tokio::join!(plane.restart_garbage_collector(), plane.pause(Part::Apiserver), plane.kill(Part::Workloads),);
    apiserver.unwrap();
    assert!(matches!(refused, Err(Error::Refused { .. })));
    // Ready or not: the API server was stopped, so the start may still be waiting for it.
    drop(controllers);
    plane.resume(Part::Apiserver).await.unwrap();
    plane.restart_garbage_collector().await.unwrap();
}

#[tokio::test]
async fn the_death_of_a_part_ends_all_and_is_told() {
    let plane = start().await;
    let pids = plane.pids();
    kill_9(pids.parts[&Part::Apiserver]);
    all_dead(&all(&pids)).await;
    let error = plane.kill(Part::Etcd).await.unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(error.to_string().contains("apiserver ended unexpectedly"), "{error}");
    let state = plane.state().to_owned();
    assert!(plane.shutdown().await.is_err());
    assert!(!state.exists());
}

#[tokio::test]
async fn a_start_that_fails_says_why() {
    let error = Plane::builder().apiserver_flag("--no-such-flag").start().await.unwrap_err();
    assert!(matches!(error, Error::Start { .. }), "{error}");
    assert!(error.to_string().contains("unknown flag: --no-such-flag"), "{error}");
}

#[tokio::test]
async fn nothing_survives_a_killed_supervisor() {
    let plane = start().await;
    let (pids, state) = (all(&plane.pids()), plane.state().to_owned());
    kill_9(plane.pids().supervisor);
    all_dead(&pids).await;
    assert!(matches!(plane.kill(Part::Etcd).await, Err(Error::Ended { .. })));
    drop(plane);
    assert!(!state.exists());
}

/// Not a test by itself: the process that the next test kills.
#[tokio::test]
#[ignore = "run by `nothing_survives_a_killed_test`"]
async fn helper_that_waits_to_be_killed() {
    let plane = Plane::shared().await;
    println!("PLANE {} {:?}", plane.state().display(), all(&plane.pids()));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn nothing_survives_a_killed_test() {
    control_plane::binary().unwrap();
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_waits_to_be_killed", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let said = lines.map(Result::unwrap).find(|line| line.contains("PLANE ")).unwrap();
    let (state, pids) = said.split_once("PLANE ").unwrap().1.split_once(' ').unwrap();
    let pids: Vec<u32> = serde_json::from_str(pids).unwrap();
    let state = PathBuf::from(state);
    assert!(state.is_dir() && pids.len() == 4 && pids.iter().all(|pid| alive(*pid)), "{said}");
    helper.kill().unwrap();
    helper.wait().unwrap();
    all_dead(&pids).await;
    fixtures::eventually("the state is removed", async || (!state.exists()).then_some(())).await;
}

#[tokio::test]
async fn dropping_the_start_ends_it() {
    let runs = |state: &Path| fs::read_dir(state.parent().unwrap()).unwrap().count();
    let plane = start().await; // the binary exists
    let before = runs(plane.state());
    let starting = Plane::builder().start();
    assert!(tokio::time::timeout(Duration::from_millis(300), starting).await.is_err());
    // Others start and end in the same folder; at some moment only this one's files are left.
    let own = format!("{}-", std::process::id());
    fixtures::eventually_ok("no state but that of this test's planes", async || {
        let entries = fs::read_dir(plane.state().parent().unwrap()).unwrap().flatten();
        let left: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        let mine = left.iter().filter(|name| name.starts_with(&own) && !name.ends_with(".lock")).count();
        if mine <= 1 || left.len() <= before { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn stock_controllers_make_pods() {
    let plane =
        Plane::builder().stock_controllers(&["deployment-controller", "replicaset-controller"]).start().await.unwrap();
    assert!(plane.pids().parts.contains_key(&Part::Workloads));
    let namespace = fixtures::namespace(&plane.client(), "deploy").await;
    let deployments: Api<Deployment> = Api::namespaced(plane.client(), &namespace);
    let pods: Api<Pod> = Api::namespaced(plane.client(), &namespace);
    let template = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    });
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template});
    fixtures::create(&deployments, json!({"metadata": {"name": "x"}, "spec": spec})).await;
    let count = async || pods.list(&ListParams::default()).await.unwrap().items.len();
    fixtures::eventually("two pods", async || (count().await == 2).then_some(())).await;
    deployments.delete("x", &DeleteParams::foreground()).await.unwrap();
    fixtures::gone(deployments, "x").await;
    assert_eq!(count().await, 0, "foreground: the pods went first");
}

#[tokio::test]
async fn the_stock_controller_manager_runs_too() {
    let plane =
        Plane::builder().controllers(Controllers::Stock).stock_controllers(&["job-controller"]).start().await.unwrap();
    assert!(!plane.pids().parts.contains_key(&Part::Workloads));
    plane.gc_quiet().await.unwrap();
    assert!(matches!(plane.graph_has("x").await, Err(Error::NoSuchPart { .. })));
    let namespace = fixtures::namespace(&plane.client(), "stock").await;
    let maps = maps(&plane.client(), &namespace);
    family(&maps).await;
    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    fixtures::gone(maps, "child").await;
}

#[tokio::test]
async fn without_controllers_nobody_collects() {
    let plane = Plane::builder()
        .controllers(Controllers::None)
        .apiserver_flag("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
        .user("carol", &["team"])
        .start()
        .await
        .unwrap();
    assert!(matches!(plane.gc_quiet().await, Err(Error::NoSuchPart { .. })));
    assert!(plane.kubeconfig_as("carol").unwrap().is_file());
    // The flag has effect, and so has the group.
    let namespace = fixtures::namespace(&plane.client(), "none").await;
    let rules = vec![fixtures::rule("", &["configmaps"], &["create", "get"])];
    let team = fixtures::Subject::group("team");
    let grant = fixtures::grant(&plane.client(), &team, Some(&namespace), rules).await;
    assert!(grant.name().starts_with("grant-"));
    let admin = maps(&plane.client(), &namespace);
    let owner = fixtures::create(&admin, json!({"metadata": {"name": "owner"}})).await;
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(), "blockOwnerDeletion": true,
    });
    let child: ConfigMap = fixtures::from(json!({"metadata": {"name": "child", "ownerReferences": [reference]}}));
    let carol = maps(&plane.client_as("carol"), &namespace);
    let refused = carol.create(&Default::default(), &child).await.unwrap_err();
    assert!(refused.to_string().contains("cannot set blockOwnerDeletion"), "{refused}");
}
