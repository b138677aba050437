//! Objects and waiting for tests.
//!
//! These functions are for tests, so most of them panic with a message instead of returning an
//! error, and whatever the server does a moment later than it says is waited for.

use std::{
    fmt::{Debug, Display},
    hash::{BuildHasher as _, RandomState},
    panic::Location,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus},
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        core::v1::{ConfigMap, Namespace, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Plane,
    audit::{self, AuditLog},
};

/// How long [`eventually`] waits.
pub const PATIENCE: Duration = Duration::from_secs(60);

// ---- names ------------------------------------------------------------------

/// A name that no other test uses: `ns("faros")` gives `faros-1a2b3c`.
#[must_use]
pub fn ns(prefix: &str) -> String {
    // Every RandomState has keys of its own, and those of a process start at random.
    let random = RandomState::new().hash_one(std::process::id());
    format!("{prefix}-{:06x}", random & 0xff_ffff)
}

/// Creates a namespace with a name from [`ns`] and returns the name.
///
/// # Panics
///
/// If it can't be created.
pub async fn namespace(client: &Client, prefix: &str) -> String {
    let name = ns(prefix);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    create(&Api::<Namespace>::all(client.clone()), namespace).await;
    name
}

/// A ConfigMap with one entry.
#[must_use]
pub fn config_map(namespace: &str, name: &str) -> ConfigMap {
    from(json!({
        "metadata": {"namespace": namespace, "name": name},
        "data": {"key": "value"},
    }))
}

// ---- waiting ----------------------------------------------------------------

/// Polls until the probe gives something, and returns that.
///
/// # Panics
///
/// After [`PATIENCE`], with the description and the caller's place.
#[track_caller]
pub fn eventually<T, P>(what: impl Display, mut probe: P) -> impl Future<Output = T>
where
    P: AsyncFnMut() -> Option<T>,
{
    eventually_ok(what, async move || probe().await.ok_or("not yet"))
}

/// Polls until the probe succeeds, and returns its value; the last error is part of the message
/// otherwise.
///
/// # Panics
///
/// After [`PATIENCE`], with the description, the last error and the caller's place.
#[track_caller]
pub fn eventually_ok<T, E, P>(what: impl Display, probe: P) -> impl Future<Output = T>
where
    P: AsyncFnMut() -> Result<T, E>,
    E: Display,
{
    let place = Location::caller();
    async move {
        match poll(PATIENCE, probe).await {
            Ok(value) => value,
            Err(error) => {
                panic!("{place}: did not happen within {} s: {what}: {error}", PATIENCE.as_secs())
            }
        }
    }
}

/// Polls until the probe succeeds; gives its last error after the time allowed.
async fn poll<T, E>(limit: Duration, mut probe: impl AsyncFnMut() -> Result<T, E>) -> Result<T, E> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(10);
    loop {
        match probe().await {
            Err(_) if begin.elapsed() < limit => tokio::time::sleep(pause).await,
            result => return result,
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Waits until an object is gone from the API server.
///
/// # Panics
///
/// After [`PATIENCE`].
#[track_caller]
pub fn gone<K>(api: Api<K>, name: &str) -> impl Future<Output = ()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let name = name.to_owned();
    eventually_ok(format!("{name} is gone"), async move || match api.get_opt(&name).await {
        Ok(None) => Ok(()),
        Ok(Some(object)) => Err(format!("{object:?}")),
        Err(error) => Err(error.to_string()),
    })
}

// ---- custom resources -------------------------------------------------------

/// Applies a CustomResourceDefinition and waits until all its served versions answer.
///
/// # Panics
///
/// If it is refused or does not become ready.
pub async fn apply_crd(client: &Client, crd: &CustomResourceDefinition) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let name = crd.name_any();
    let mut manifest = serde_json::to_value(crd).expect("a CRD is JSON");
    manifest["apiVersion"] = json!("apiextensions.k8s.io/v1");
    manifest["kind"] = json!("CustomResourceDefinition");
    let apply = PatchParams::apply("control-plane").force();
    if let Err(error) = api.patch(&name, &apply, &Patch::Apply(&manifest)).await {
        panic!("applying CRD {name}: {error}");
    }
    eventually_ok(format!("CRD {name} is established"), async || {
        let status = api.get(&name).await.map_err(|e| e.to_string())?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if conditions.iter().any(|c| c.type_ == "Established" && c.status == "True") {
            Ok(())
        } else {
            Err(format!("{conditions:?}"))
        }
    })
    .await;
    for version in crd.spec.versions.iter().filter(|version| version.served) {
        let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &crd.spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural);
        let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let one = ListParams::default().limit(1);
        let what = format!("CRD {name} serves {}", version.name);
        eventually_ok(what, async || objects.list(&one).await.map(drop)).await;
    }
}

// ---- users and rights -------------------------------------------------------

/// Who gets rights.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// A user.
    User(String),
    /// A group.
    Group(String),
    /// A ServiceAccount: namespace and name.
    ServiceAccount(String, String),
}

impl Subject {
    /// A user.
    #[must_use]
    pub fn user(name: &str) -> Self {
        Self::User(name.to_owned())
    }

    /// A group.
    #[must_use]
    pub fn group(name: &str) -> Self {
        Self::Group(name.to_owned())
    }

    /// A ServiceAccount.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::ServiceAccount(namespace.to_owned(), name.to_owned())
    }

    fn in_binding(&self) -> Value {
        let api = "rbac.authorization.k8s.io";
        match self {
            Self::User(name) => json!({"kind": "User", "apiGroup": api, "name": name}),
            Self::Group(name) => json!({"kind": "Group", "apiGroup": api, "name": name}),
            Self::ServiceAccount(namespace, name) => {
                json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
            }
        }
    }

    fn asks_for(&self, attributes: ResourceAttributes) -> SubjectAccessReviewSpec {
        let mut spec = SubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        match self {
            Self::User(name) => spec.user = Some(name.clone()),
            Self::Group(name) => spec.groups = Some(vec![name.clone()]),
            Self::ServiceAccount(namespace, name) => {
                spec.user = Some(format!("system:serviceaccount:{namespace}:{name}"));
            }
        }
        spec
    }
}

/// A rule: these verbs on these resources of one group. [`PolicyRule`] has more to offer, such as
/// resource names.
#[must_use]
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(own(&[group])),
        resources: Some(own(resources)),
        verbs: own(verbs),
        ..Default::default()
    }
}

/// Rights that were granted: a role and its binding, of the same name.
#[derive(Clone, Debug)]
#[must_use = "rights stay until they are revoked"]
pub struct Grant {
    name: String,
    namespace: Option<String>,
    probe: Option<SubjectAccessReviewSpec>,
}

impl Grant {
    /// The name of the role and of its binding.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Deletes role and binding and waits until the authorizer knows. (The subject may still have
    /// other rights to the same; then this waits in vain.)
    ///
    /// # Panics
    ///
    /// If they can't be deleted, or after [`PATIENCE`].
    pub async fn revoke(self, client: &Client) {
        match &self.namespace {
            None => {
                delete(&Api::<ClusterRoleBinding>::all(client.clone()), &self.name).await;
                delete(&Api::<ClusterRole>::all(client.clone()), &self.name).await;
            }
            Some(namespace) => {
                delete(&Api::<RoleBinding>::namespaced(client.clone(), namespace), &self.name).await;
                delete(&Api::<Role>::namespaced(client.clone(), namespace), &self.name).await;
            }
        }
        if let Some(probe) = self.probe {
            await_access(client, probe, false).await;
        }
    }
}

/// Grants rules to a subject, in one namespace or (with `None`) everywhere, by a role and a
/// binding with a name of their own, and waits until the authorizer knows.
///
/// # Panics
///
/// If something is refused, or after [`PATIENCE`].
pub async fn grant(client: &Client, subject: &Subject, namespace: Option<&str>, rules: Vec<PolicyRule>) -> Grant {
    let name = ns("grant");
    let probes: Vec<_> = rules.iter().map(|rule| subject.asks_for(probe(rule, namespace))).collect();
    let metadata = json!({"name": name, "namespace": namespace});
    let role = json!({"metadata": metadata, "rules": rules});
    let binding = |kind: &str| {
        json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [subject.in_binding()],
        })
    };
    match namespace {
        None => {
            create(&Api::<ClusterRole>::all(client.clone()), role).await;
            create(&Api::<ClusterRoleBinding>::all(client.clone()), binding("ClusterRole")).await;
        }
        Some(namespace) => {
            create(&Api::<Role>::namespaced(client.clone(), namespace), role).await;
            create(&Api::<RoleBinding>::namespaced(client.clone(), namespace), binding("Role")).await;
        }
    }
    for probe in &probes {
        await_access(client, probe.clone(), true).await;
    }
    Grant { name, namespace: namespace.map(str::to_owned), probe: probes.into_iter().next() }
}

/// One request that a rule allows.
fn probe(rule: &PolicyRule, namespace: Option<&str>) -> ResourceAttributes {
    let first = |list: &Option<Vec<String>>| list.as_ref().and_then(|list| list.first()).cloned();
    let resource = first(&rule.resources).unwrap_or_default();
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        group: first(&rule.api_groups),
        resource: Some(resource),
        subresource,
        name: first(&rule.resource_names),
        verb: rule.verbs.first().cloned(),
        namespace: namespace.map(str::to_owned),
        ..Default::default()
    }
}

async fn await_access(client: &Client, spec: SubjectAccessReviewSpec, allowed: bool) {
    let api = Api::<SubjectAccessReview>::all(client.clone());
    let what = format!("access is {}: {spec:?}", if allowed { "allowed" } else { "denied" });
    let review = SubjectAccessReview { spec, ..Default::default() };
    eventually_ok(what, async || {
        let answer = api.create(&PostParams::default(), &review).await.map_err(|e| e.to_string())?;
        let status = answer.status.unwrap_or_default();
        if status.allowed == allowed { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// The configuration of a ServiceAccount with a token of its own; the account is created if it is
/// missing, the namespace is not. It has no rights until some are granted.
///
/// # Panics
///
/// If the account can't be created or gets no token.
pub async fn service_account_config(plane: &Plane, namespace: &str, name: &str) -> Config {
    let api = Api::<ServiceAccount>::namespaced(plane.client(), namespace);
    let account: ServiceAccount = from(json!({"metadata": {"name": name}}));
    match api.create(&PostParams::default(), &account).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => panic!("creating ServiceAccount {namespace}/{name}: {error}"),
    }
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..Default::default() };
    match api.create_token_request(name, &PostParams::default(), &request).await {
        Ok(TokenRequest { status: Some(TokenRequestStatus { token: Some(token), .. }), .. }) => {
            plane.config_with_token(token)
        }
        Ok(answer) => panic!("no token for ServiceAccount {namespace}/{name}: {answer:?}"),
        Err(error) => panic!("getting a token for ServiceAccount {namespace}/{name}: {error}"),
    }
}

/// A client of a ServiceAccount; see [`service_account_config`].
///
/// # Panics
///
/// If the account can't be created or gets no token.
pub async fn service_account_client(plane: &Plane, namespace: &str, name: &str) -> Client {
    let config = service_account_config(plane, namespace, name).await;
    Client::try_from(config).expect("a usable configuration")
}

/// A recorded client of a ServiceAccount; see [`service_account_config`] and [`audit`].
///
/// # Panics
///
/// If the account can't be created or gets no token.
pub async fn audited_service_account(plane: &Plane, namespace: &str, name: &str) -> (Client, AuditLog) {
    let config = service_account_config(plane, namespace, name).await;
    audit::wrap(config).expect("a usable configuration")
}

// ---- admission --------------------------------------------------------------

/// Denies every DELETE of an object that carries an annotation of this key, whoever asks (the
/// garbage collector too), with the message `protected against USER`, and waits until that is
/// enforced. The deletion of custom resources by the deletion of their CRD does not ask.
///
/// The policy holds in the whole cluster, so use a key and a name of your own.
///
/// # Panics
///
/// If something is refused, or after [`PATIENCE`].
pub async fn deny_delete_policy(client: &Client, name: &str, annotation: &str) {
    // Keys have no quotes, so Rust's notation of the string is CEL's too.
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["DELETE"],
            }]},
            "validations": [{
                "expression": format!(
                    "oldObject == null || !has(oldObject.metadata.annotations) \
                     || !({annotation:?} in oldObject.metadata.annotations)"
                ),
                "messageExpression": "'protected against ' + request.userInfo.username",
            }],
        },
    });
    let binding = json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    create(&Api::<ValidatingAdmissionPolicy>::all(client.clone()), policy).await;
    create(&Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()), binding).await;
    await_denial(client, annotation, true).await;
}

/// Removes what [`deny_delete_policy`] made, and waits until it is no longer enforced.
///
/// # Panics
///
/// If something is refused, or after [`PATIENCE`].
pub async fn remove_deny_delete_policy(client: &Client, name: &str, annotation: &str) {
    delete(&Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()), name).await;
    delete(&Api::<ValidatingAdmissionPolicy>::all(client.clone()), name).await;
    await_denial(client, annotation, false).await;
}

async fn await_denial(client: &Client, annotation: &str, denied: bool) {
    let api = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let name = ns("deny-probe");
    create(&api, json!({"metadata": {"name": name, "annotations": {annotation: ""}}})).await;
    let what = format!("DELETE with annotation {annotation} is {}", if denied { "denied" } else { "allowed" });
    eventually_ok(what, async || match api.delete(&name, &DeleteParams::default().dry_run()).await {
        Ok(_) if !denied => Ok(()),
        Err(kube::Error::Api(status)) if denied && status.code == 422 => Ok(()),
        Ok(_) => Err("allowed".to_owned()),
        Err(error) => Err(error.to_string()),
    })
    .await;
    let without = json!({"metadata": {"annotations": {annotation: null}}});
    if let Err(error) = api.patch(&name, &PatchParams::default(), &Patch::Merge(&without)).await {
        panic!("patching ConfigMap {name}: {error}");
    }
    delete(&api, &name).await;
}

// ---- short cuts -------------------------------------------------------------

/// Creates an object that is written as JSON; `apiVersion` and `kind` may be left out.
///
/// # Panics
///
/// If the JSON does not fit the type or the server refuses it.
pub async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    match api.create(&PostParams::default(), &from(object)).await {
        Ok(created) => created,
        Err(error) => panic!("creating an object of {}: {error}", api.resource_url()),
    }
}

/// Deletes an object; one that does not exist is fine.
///
/// # Panics
///
/// If the server refuses it.
pub async fn delete<K>(api: &Api<K>, name: &str)
where
    K: Clone + Debug + DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("deleting {name}: {error}"),
    }
}

/// Any typed object, written as JSON; `apiVersion` and `kind` may be left out.
///
/// # Panics
///
/// If the JSON does not fit the type.
#[must_use]
pub fn from<K: DeserializeOwned>(object: Value) -> K {
    match serde_json::from_value(object.clone()) {
        Ok(typed) => typed,
        Err(error) => panic!("{error} in {object}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn polling_ends_with_the_last_error() {
        let mut polls = 0;
        let result = poll(Duration::from_millis(50), async || {
            polls += 1;
            Err::<(), _>(format!("poll {polls}"))
        })
        .await;
        assert!(polls > 1, "{polls}");
        assert_eq!(result, Err(format!("poll {polls}")));
    }
}
