//! The examples as a user runs them: real processes, under exactly the rights that they ship.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use control_plane::{Plane, fixtures};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, Namespace, ServiceAccount},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, Client, Discovery, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::Scope,
};
use kube_custody::{
    object::ResourceKind,
    ownership::proxy::{ClusterGitTrackOwner, GitTrackOwner},
    rbac::Setup,
};
use serde_json::{Value, json};

use crate::world::object;

/// The program of an example. `cargo test` builds examples before it runs tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is not built: run `cargo build --all-features --examples`", program.display());
    program
}

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(prefix: &str) -> Self {
        let path = std::env::temp_dir().join(fixtures::ns(prefix));
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn write(&self, name: &str, objects: &[Value]) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // JSON is YAML.
        let text: Vec<_> = objects.iter().map(|o| serde_json::to_string_pretty(o).unwrap()).collect();
        std::fs::write(path, text.join("\n---\n")).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running operator; it ends with the test.
struct Operator {
    process: Child,
    log: PathBuf,
}

impl Operator {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the operator said:\n{}", self.log());
        }
    }
}

/// What `kubectl apply -f` would do, as the administrator.
async fn apply(client: &Client, text: &str) {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    for value in documents.into_iter().filter(|v| !v.is_null()) {
        let object = object(value);
        let types = object.types.clone().unwrap();
        let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
        let kind = GroupVersionKind::gvk(group, version, &types.kind);
        let discovery = Discovery::new(client.clone()).filter(&[group]).run().await.unwrap();
        let (resource, capabilities) = discovery.resolve_gvk(&kind).unwrap();
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), &object.namespace().unwrap(), &resource),
        };
        let params = PatchParams::apply("administrator").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.unwrap();
    }
}

/// Installs an example as its documentation says, and a kubeconfig for its ServiceAccount.
async fn install(plane: &Plane, folder: &Folder, name: &str, namespace: &str) -> PathBuf {
    let admin = plane.client();
    let crds = Command::new(example(name)).arg("crds").output().unwrap();
    assert!(crds.status.success());
    let crds = String::from_utf8(crds.stdout).unwrap();
    for definition in serde_saphyr::from_multiple::<Value>(&crds).unwrap().into_iter().filter(|v| !v.is_null()) {
        fixtures::apply_crd(&admin, &serde_json::from_value(definition).unwrap()).await;
    }
    let account = name.replace('_', "-");
    let rbac = std::fs::read_to_string(format!("{}/examples/{name}/deploy/rbac.yaml", env!("CARGO_MANIFEST_DIR")));
    apply(&admin, &rbac.unwrap()).await;

    let request: TokenRequest = fixtures::from(json!({"spec": {"expirationSeconds": 3600, "audiences": []}}));
    let accounts = Api::<ServiceAccount>::namespaced(admin, namespace);
    let granted = accounts.create_token_request(&account, &PostParams::default(), &request).await.unwrap();
    let granted = serde_json::to_value(granted).unwrap();
    let token = granted["status"]["token"].as_str().unwrap();
    let kubeconfig = std::fs::read_to_string(plane.kubeconfig()).unwrap();
    assert!(kubeconfig.contains("admin-token"));
    let path = folder.0.join("kubeconfig");
    std::fs::write(&path, kubeconfig.replace("admin-token", token)).unwrap();
    path
}

fn start(folder: &Folder, name: &str, kubeconfig: &PathBuf, args: &[&str]) -> Operator {
    let log = folder.0.join("operator.log");
    let file = std::fs::File::create(&log).unwrap();
    let process = Command::new(example(name))
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    Operator { process, log }
}

fn tracks(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let kind = if namespace.is_some() { "GitTrack" } else { "ClusterGitTrack" };
    let resource = kube::api::ApiResource::from_gvk(&GroupVersionKind::gvk("faros.pusher.com", "v1alpha1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn track(client: &Client, namespace: Option<&str>, name: &str, path: &str) {
    let kind = if namespace.is_some() { "GitTrack" } else { "ClusterGitTrack" };
    let value = json!({
        "apiVersion": "faros.pusher.com/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": {"path": path},
    });
    tracks(client, namespace).create(&PostParams::default(), &object(value)).await.unwrap();
}

/// Waits until a track is `Ready`, and returns its status.
async fn ready(api: &Api<DynamicObject>, name: &str) -> Value {
    fixtures::eventually(format!("{name} to be ready"), async || {
        let status = api.get(name).await.unwrap().data.get("status").cloned()?;
        let conditions = status.get("conditions")?.as_array()?.clone();
        let is_ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
        is_ready.then_some(status)
    })
    .await
}

fn config_map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
}

fn cluster_role(name: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": []})
}

async fn exists(client: &Client, value: &Value) -> bool {
    crate::world::exists(client, &object(value.clone())).await
}

#[tokio::test]
async fn gittrack_manages_the_cluster_under_its_own_rights() {
    let plane = Plane::builder().start().await.unwrap();
    let admin = plane.client();
    let folder = Folder::new("gittrack");
    let kubeconfig = install(&plane, &folder, "gittrack", "gittrack-system").await;
    let repo = Folder::new("checkout");
    let home = fixtures::namespace(&admin, "tenant").await;
    let other = fixtures::ns("apps");
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}});
    let (near, far, role) = (config_map(&home, "near"), config_map(&other, "far"), cluster_role("gittrack-role"));
    repo.write("tenant/a.yaml", &[space.clone(), near.clone()]);
    repo.write("tenant/b/more.yaml", &[far.clone(), role.clone()]);
    let shared = cluster_role("gittrack-shared");
    repo.write("cluster/all.yaml", &[shared.clone(), config_map(&home, "of-the-cluster")]);

    let repo_path = repo.0.display().to_string();
    let args = ["run", "--repo", &repo_path, "--interval", "1"];
    let operator = start(&folder, "gittrack", &kubeconfig, &args);
    track(&admin, Some(&home), "all", "/tenant").await;
    track(&admin, None, "shared", "cluster").await;
    let of_tenant = tracks(&admin, Some(&home));
    ready(&of_tenant, "all").await;
    ready(&tracks(&admin, None), "shared").await;
    for child in [&space, &near, &far, &role, &shared] {
        assert!(exists(&admin, child).await, "{child}");
    }

    repo.remove("tenant/b/more.yaml");
    fixtures::eventually("the prune", async || {
        (!exists(&admin, &role).await && !exists(&admin, &far).await).then_some(())
    })
    .await;
    assert!(exists(&admin, &near).await);

    of_tenant.delete("all", &DeleteParams::default()).await.unwrap();
    tracks(&admin, None).delete("shared", &DeleteParams::default()).await.unwrap();
    fixtures::gone(of_tenant, "all").await;
    fixtures::gone(tracks(&admin, None), "shared").await;
    for child in [&space, &near, &shared] {
        assert!(!exists(&admin, child).await, "{child}");
    }
    let log = operator.log();
    assert!(!log.contains("forbidden"), "the shipped rights do not suffice:\n{log}");
    drop(operator);
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn gittrack_leaves_alone_what_a_tenant_may_not_manage() {
    let plane = Plane::builder().start().await.unwrap();
    let admin = plane.client();
    let folder = Folder::new("gittrack");
    let kubeconfig = install(&plane, &folder, "gittrack", "gittrack-system").await;
    let repo = Folder::new("checkout");
    let home = fixtures::namespace(&admin, "tenant").await;
    let (near, far, role) = (config_map(&home, "near"), config_map("default", "far"), cluster_role("tenant-role"));
    repo.write("tenant/all.yaml", &[near.clone(), far.clone(), role.clone()]);
    let repo_path = repo.0.display().to_string();
    let args = ["run", "--repo", &repo_path, "--interval", "1", "--mode", "namespaced"];
    let _operator = start(&folder, "gittrack", &kubeconfig, &args);
    track(&admin, Some(&home), "all", "tenant").await;
    track(&admin, Some(&home), "outside", "../..").await;

    let status = ready(&tracks(&admin, Some(&home)), "all").await;
    let ignored: Vec<_> = status["ignored"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(ignored.len(), 2, "{ignored:?}");
    assert!(ignored[0].contains("namespace `default` is not managed by this GitTrack"), "{ignored:?}");
    assert!(ignored[1].contains("a GitTrack cannot manage a cluster-scoped resource"), "{ignored:?}");
    assert!(exists(&admin, &near).await && !exists(&admin, &far).await && !exists(&admin, &role).await);

    let outside = fixtures::eventually("the refusal", async || {
        let object = tracks(&admin, Some(&home)).get("outside").await.unwrap();
        let conditions = object.data.pointer("/status/conditions")?.as_array()?.clone();
        conditions.into_iter().find(|c| c["type"] == "Stalled" && c["status"] == "True")
    })
    .await;
    assert!(outside["message"].as_str().unwrap().contains("leads out of the checkout"), "{outside}");
    plane.shutdown().await.unwrap();
}

fn kustomizations(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("kustomization.example.com", "v1alpha1", "Kustomization");
    Api::namespaced_with(client.clone(), namespace, &kube::api::ApiResource::from_gvk(&kind))
}

/// Waits until condition `Ready` of a Kustomization is `False` for `reason`, and says `words`.
async fn waits(api: &Api<DynamicObject>, name: &str, reason: &str, words: &str) {
    fixtures::eventually_ok(format!("{name}: {reason}"), async || {
        let live = api.get(name).await.map_err(|e| e.to_string())?;
        let conditions =
            live.data.pointer("/status/conditions").and_then(|c| c.as_array().cloned()).unwrap_or_default();
        let ready = conditions.iter().find(|c| c["type"] == "Ready").ok_or("no condition")?;
        let said = ready["message"].as_str().unwrap_or_default();
        if ready["reason"] == reason && said.contains(words) { Ok(()) } else { Err(ready.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn kustomizations_deleted_all_at_once_go_in_reverse_under_its_own_rights() {
    let plane = Plane::builder().start().await.unwrap();
    let far = Plane::builder().start().await.unwrap();
    let admin = plane.client();
    let folder = Folder::new("kustomization");
    let kubeconfig = install(&plane, &folder, "kustomization", "kustomization-system").await;
    let sample = format!("{}/examples/kustomization/sample", env!("CARGO_MANIFEST_DIR"));
    let args = ["run", "--repo", &sample, "--interval", "1", "--allow-force"];
    let operator = start(&folder, "kustomization", &kubeconfig, &args);
    apply(&admin, &std::fs::read_to_string(format!("{sample}/kustomizations.yaml")).unwrap()).await;
    // One more, in another cluster, which `app` does not need.
    let credentials = std::fs::read_to_string(far.kubeconfig()).unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "far", "namespace": "default"},
        "stringData": {"value": credentials},
    });
    let remote = json!({
        "apiVersion": "kustomization.example.com/v1alpha1", "kind": "Kustomization",
        "metadata": {"name": "remote", "namespace": "default"},
        "spec": {"path": "crds", "dependsOn": [{"name": "crds"}], "kubeConfig": {"secretRef": {"name": "far"}}},
    });
    apply(&admin, &secret.to_string()).await;
    apply(&admin, &remote.to_string()).await;
    let all = kustomizations(&admin, "default");
    for name in ["crds", "operator", "app", "remote"] {
        ready(&all, name).await;
    }
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.sample.example.com"},
    });
    assert!(exists(&admin, &crd).await && exists(&far.client(), &crd).await);

    let widget = json!({
        "apiVersion": "sample.example.com/v1", "kind": "Widget", "metadata": {"name": "shop", "namespace": "default"},
    });
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    crate::world::patch(&admin, &object(widget.clone()), hold(json!(["shop.example.com/stock"]))).await;
    for name in ["crds", "operator", "app", "remote"] {
        all.delete(name, &DeleteParams::default()).await.unwrap();
    }
    crate::world::remove(&admin, &object(secret.clone())).await;
    waits(&all, "crds", "DependentsExist", "default/operator").await;
    waits(&all, "operator", "DependentsExist", "default/app").await;
    fixtures::gone(all.clone(), "remote").await;
    assert!(!exists(&far.client(), &crd).await, "with the credentials that were held");
    fixtures::eventually("the credentials are let go", async || (!exists(&admin, &secret).await).then_some(())).await;
    // The application is stuck, and its operator is told not to wait.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "widget-operator", "namespace": "default"},
    });
    assert!(exists(&admin, &deployment).await);
    let (uid, app) = (all.get("operator").await.unwrap().uid(), all.get("app").await.unwrap().uid());
    let object_id = "Kustomization.kustomization.example.com default/app";
    let request = json!({"uid": uid, "reason": "beyond repair", "dependents": [{"object": object_id, "uid": app}]});
    let annotation = json!({"metadata": {"annotations": {"kustomization.example.com/force": request.to_string()}}});
    all.patch("operator", &PatchParams::default(), &Patch::Merge(annotation)).await.unwrap();
    fixtures::gone(all.clone(), "operator").await;
    assert!(!exists(&admin, &deployment).await && exists(&admin, &widget).await);
    crate::world::patch(&admin, &object(widget.clone()), hold(json!(null))).await;
    fixtures::gone(all.clone(), "app").await;
    fixtures::gone(all.clone(), "crds").await;
    assert!(!exists(&admin, &crd).await);
    let log = operator.log();
    assert!(!log.contains("forbidden"), "the shipped rights do not suffice:\n{log}");
    drop(operator);
    far.shutdown().await.unwrap();
    plane.shutdown().await.unwrap();
}

#[tokio::test]
async fn the_quickstart_tells_its_story_to_the_end() {
    let plane = Plane::builder().start().await.unwrap();
    let kubeconfig = plane.kubeconfig().to_owned();
    let run = tokio::task::spawn_blocking(move || {
        Command::new(example("quickstart")).env("KUBECONFIG", kubeconfig).stdin(Stdio::null()).output().unwrap()
    });
    let output = run.await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Everything is gone"), "{said}");
    plane.shutdown().await.unwrap();
}

/// What a rule grants: group, resource, name (or all), verb; by namespace, or everywhere.
type Granted = std::collections::BTreeSet<(Option<String>, String, String, Option<String>, String)>;

fn expand(namespace: Option<&str>, rules: &[PolicyRule], granted: &mut Granted) {
    for rule in rules {
        let names = rule.resource_names.clone().unwrap_or_default();
        let names: Vec<_> = if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for name in &names {
                    granted.extend(rule.verbs.iter().map(|verb| {
                        let namespace = namespace.map(ToOwned::to_owned);
                        (namespace, group.clone(), resource.clone(), name.clone(), verb.clone())
                    }));
                }
            }
        }
    }
    // What is granted everywhere is granted in each namespace.
    let everywhere: Vec<_> = granted.iter().filter(|g| g.0.is_none()).cloned().collect();
    granted.retain(|(n, g, r, o, v)| {
        n.is_none() || !everywhere.contains(&(None, g.clone(), r.clone(), o.clone(), v.clone()))
    });
}

/// The rights in an example's `deploy/rbac.yaml`.
fn shipped(example: &str) -> Granted {
    let path = format!("{}/examples/{example}/deploy/rbac.yaml", env!("CARGO_MANIFEST_DIR"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut granted = Granted::new();
    for document in documents.iter().filter(|d| d["rules"].is_array()) {
        let rules: Vec<PolicyRule> = serde_json::from_value(document["rules"].clone()).unwrap();
        expand(document["metadata"]["namespace"].as_str(), &rules, &mut granted);
    }
    granted
}

fn generated(setups: impl IntoIterator<Item = Setup>) -> Granted {
    let mut granted = Granted::new();
    for role in setups.into_iter().flat_map(|setup| setup.rights().roles()) {
        let rules: Vec<_> = role.rules.into_iter().map(|(rule, _)| rule).collect();
        expand(role.namespace.as_deref(), &rules, &mut granted);
    }
    granted
}

fn kind(group: &str, version: &str, kind: &str, scope: kube_custody::object::Scope) -> ResourceKind {
    ResourceKind::new(group, version, kind, &format!("{}s", kind.to_lowercase()), scope)
}

#[test]
fn gittrack_ships_exactly_the_generated_rights() {
    use kube_custody::object::Scope::{Cluster, Namespaced};
    let setup = |name: &str, scope| {
        let setup = Setup::new(kind("faros.pusher.com", "v1alpha1", name, scope)).children([
            kind("", "v1", "ConfigMap", Namespaced),
            kind("", "v1", "Namespace", Cluster),
            kind("rbac.authorization.k8s.io", "v1", "ClusterRole", Cluster),
        ]);
        setup.proxies::<GitTrackOwner, ClusterGitTrackOwner>().unwrap()
    };
    let of_cluster = setup("ClusterGitTrack", Cluster).records_in("gittrack-system");
    assert_eq!(shipped("gittrack"), generated([setup("GitTrack", Namespaced), of_cluster]));
}

#[test]
fn helm_release_ships_exactly_the_generated_rights() {
    let printed = Command::new(example("helm_release")).arg("rbac").output().unwrap();
    let path = format!("{}/examples/helm_release/deploy/rbac.yaml", env!("CARGO_MANIFEST_DIR"));
    let read = |text: &str| serde_saphyr::from_multiple::<Value>(text).unwrap();
    let printed = read(&String::from_utf8(printed.stdout).unwrap());
    assert_eq!(read(&std::fs::read_to_string(path).unwrap()), printed, "write what `helm_release rbac` prints there");
}

#[tokio::test]
async fn c08_helm_release_leaves_nothing_behind_when_its_namespace_is_deleted() {
    let plane = Plane::builder().start().await.unwrap();
    let admin = plane.client();
    let folder = Folder::new("helm");
    let kubeconfig = install(&plane, &folder, "helm_release", "helm-release-system").await;
    let charts = format!("{}/examples/helm_release/charts", env!("CARGO_MANIFEST_DIR"));
    let args = ["run", "--charts", charts.as_str()];
    for down in [false, true] {
        let home = fixtures::namespace(&admin, "release").await;
        let operator = start(&folder, "helm_release", &kubeconfig, &args);
        let resource =
            kube::api::ApiResource::from_gvk(&GroupVersionKind::gvk("helm.example.com", "v1alpha1", "HelmRelease"));
        let releases: Api<DynamicObject> = Api::namespaced_with(admin.clone(), &home, &resource);
        let values = json!({"color": "red: {}\n---", "purpose": "test"});
        let release = json!({
            "apiVersion": "helm.example.com/v1alpha1", "kind": "HelmRelease", "metadata": {"name": "web"},
            "spec": {"chart": "web", "values": values},
        });
        releases.create(&PostParams::default(), &object(release)).await.unwrap();
        ready(&releases, "web").await;
        let settings = config_map(&home, "web-settings");
        let role = cluster_role(&format!("{home}-web-reader"));
        let name = format!("{home}-web");
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}});
        let live = crate::world::live(&admin, &object(settings.clone())).await.unwrap();
        assert_eq!(live.data["data"]["color"], values["color"], "a value stays a value");
        assert!(exists(&admin, &role).await && exists(&admin, &class).await);

        let said = if down { operator.log() } else { String::new() };
        let running = (!down).then_some(operator);
        let spaces = Api::<Namespace>::all(admin.clone());
        spaces.delete(&home, &DeleteParams::default()).await.unwrap();
        if down {
            // The namespace controller has taken what it could.
            fixtures::gone(Api::<ConfigMap>::namespaced(admin.clone(), &home), "web-settings").await;
            assert!(exists(&admin, &role).await && exists(&admin, &class).await);
        }
        let operator = running.unwrap_or_else(|| start(&folder, "helm_release", &kubeconfig, &args));
        fixtures::gone(spaces, &home).await;
        for child in [&settings, &role, &class] {
            assert!(!exists(&admin, child).await, "{child}");
        }
        let log = said + &operator.log();
        assert!(!log.contains("cannot"), "the shipped rights do not suffice:\n{log}");
    }
    plane.shutdown().await.unwrap();
}
