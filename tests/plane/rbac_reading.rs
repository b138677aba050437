//! RBAC as rules read it, held against the API server's authorizer: the same roles and bindings, the same answer.

use control_plane::{Plane, fixtures};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, PostParams},
};
use kube_custody::{
    graph::{GraphBuilder, ManifestSet, Rules},
    inventory::Requirement,
    object::ObjectId,
};
use serde_json::{Value, json};

use crate::world::*;

const GROUP: &str = "mesh.example.com";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Sets of roles and bindings. `RBAC_WORLDS` asks for more.
const WORLDS: u64 = 60;

/// A small generator of numbers: the worlds are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// An operator with its account, a custom resource, and roles and bindings that may let the one write the other.
struct Small {
    /// The operator's namespace.
    ops: String,
    mesh: DynamicObject,
    rbac: Vec<DynamicObject>,
}

fn rule(dice: &mut Dice) -> Value {
    let resources =
        ["meshes", "meshes/status", "meshes/finalizers", "*", "*/status", "meshes/*", "meshes/scale", "gateways"];
    let mut rule = json!({
        "apiGroups": [dice.of(&[GROUP, GROUP, GROUP, "*", "", "other.example.com"])],
        "resources": [dice.of(&resources), dice.of(&["gateways", "meshes/scale", "*/finalizers"])],
        "verbs": [dice.of(&["update", "patch", "*", "get", "delete"]), "list"],
    });
    if dice.below(4) == 0 {
        rule["resourceNames"] = json!([dice.of(&["mesh", "another"])]);
    }
    rule
}

fn small(index: u64, prefix: &str, places: &[String; 2]) -> Small {
    let mut dice = Dice(index.wrapping_mul(7919) + 1);
    let [ops, app] = places.clone();
    let mut metadata = json!({"name": "mesh"});
    let mut place = [Some(&ops), Some(&app), None];
    if let Some(namespace) = dice.of(&place) {
        metadata["namespace"] = json!(namespace);
    }
    let mesh = object(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Mesh", "metadata": metadata}));
    let mut rbac = Vec::new();
    for number in 0..=dice.below(2) {
        let name = format!("{prefix}-{index}-{number}");
        place.rotate_left(dice.below(3));
        let home = place[0];
        let in_role = home.is_some() && dice.below(2) == 0;
        let (role_kind, binding_kind) = match (home, in_role) {
            (Some(_), true) => ("Role", "RoleBinding"),
            (Some(_), false) => ("ClusterRole", "RoleBinding"),
            (None, _) => ("ClusterRole", "ClusterRoleBinding"),
        };
        let named = |of: Option<&String>| match of {
            Some(namespace) => json!({"name": name, "namespace": namespace}),
            None => json!({"name": name}),
        };
        let rules: Vec<_> = (0..=dice.below(2)).map(|_| rule(&mut dice)).collect();
        let account = format!("op-{index}");
        let mut subject = match dice.below(7) {
            0 => json!({"kind": "User", "apiGroup": RBAC, "name": format!("system:serviceaccount:{ops}:{account}")}),
            // The accounts of a namespace of which there is but one with rights on these resources.
            1 => json!({"kind": "ServiceAccount", "name": "another", "namespace": ops}),
            2 => json!({"kind": "ServiceAccount", "name": account, "namespace": app}),
            3 => json!({"kind": "Group", "apiGroup": RBAC, "name": format!("system:serviceaccounts:{app}")}),
            _ => json!({"kind": "ServiceAccount", "name": account, "namespace": ops}),
        };
        if binding_kind == "RoleBinding" && subject["kind"] == "ServiceAccount" && dice.below(2) == 0 {
            subject.as_object_mut().unwrap().remove("namespace");
        }
        if dice.below(10) > 0 {
            rbac.push(object(json!({
                "apiVersion": format!("{RBAC}/v1"), "kind": role_kind,
                "metadata": named(home.filter(|_| in_role)), "rules": rules,
            })));
        }
        rbac.push(object(json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": binding_kind, "metadata": named(home),
            "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": name}, "subjects": [subject],
        })));
    }
    Small { ops, mesh, rbac }
}

/// Whether rules find that the operator serves the custom resource.
fn read(world: &Small, index: u64) -> bool {
    let (ops, account) = (&world.ops, format!("op-{index}"));
    let pod = json!({"serviceAccountName": account, "containers": [{"name": "main"}]});
    let operator = object(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "operator", "namespace": ops},
        "spec": {"template": {"metadata": {"labels": {"app": "operator"}}, "spec": pod}},
    }));
    let all = world.rbac.iter().chain([&world.mesh, &operator]);
    let set: Vec<_> = all.map(|object| (ObjectId::of(object).unwrap(), object)).collect();
    let mut builder = GraphBuilder::new();
    for (id, _) in &set {
        builder.add(id.clone()).unwrap();
    }
    builder.infer(&Rules::standard(), &ManifestSet::new(set.iter().map(|(id, object)| (id, *object))));
    let graph = builder.build().unwrap();
    let mesh = graph.node(&ObjectId::of(&world.mesh).unwrap()).unwrap();
    graph.edges(mesh).any(|edge| {
        let by = matches!(edge.requirement, Requirement::Preferred { rule, .. } if rule.starts_with("served-by"));
        by && graph.id(edge.to).kind() == "Deployment"
    })
}

/// Whether the API server lets an account write a resource: itself, its status or its finalizers.
async fn allowed(client: &Client, account: (&str, &str), namespace: Option<&str>) -> bool {
    let reviews = Api::<SubjectAccessReview>::all(client.clone());
    let user = format!("system:serviceaccount:{}:{}", account.0, account.1);
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", account.0)];
    for subresource in ["", "status", "finalizers"] {
        for verb in ["update", "patch"] {
            let attributes = ResourceAttributes {
                group: Some(GROUP.into()),
                version: Some("v1".into()),
                resource: Some("meshes".into()),
                subresource: (!subresource.is_empty()).then(|| subresource.into()),
                namespace: namespace.map(Into::into),
                name: Some("mesh".into()),
                verb: Some(verb.into()),
                ..ResourceAttributes::default()
            };
            let spec = SubjectAccessReviewSpec {
                user: Some(user.clone()),
                groups: Some(groups.iter().cloned().chain(["system:authenticated".to_owned()]).collect()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
            if answer.status.unwrap().allowed {
                return true;
            }
        }
    }
    false
}

#[tokio::test]
async fn c13_rules_read_rbac_as_the_api_server_does() {
    let client = Plane::shared().await.client();
    let places = [new_namespace(&client, "ops").await, new_namespace(&client, "app").await];
    let prefix = fixtures::ns("rbac");
    let worlds = std::env::var("RBAC_WORLDS").ok().and_then(|n| n.parse().ok()).unwrap_or(WORLDS);
    let all: Vec<_> = (0..worlds).map(|index| small(index, &prefix, &places)).collect();
    for object in all.iter().flat_map(|world| &world.rbac) {
        create(&client, object).await;
    }
    // The authorizer hears of them by watches: once it knows the last of each kind, it knows all.
    let canary = json!([{"apiGroups": [GROUP], "resources": ["meshes"], "verbs": ["update"]}]);
    let subject = json!([{"kind": "ServiceAccount", "name": "canary", "namespace": places[0]}]);
    let mut last = Vec::new();
    for (role, binding, namespace) in
        [("Role", "RoleBinding", Some(&places[1])), ("ClusterRole", "ClusterRoleBinding", None)]
    {
        for (kind, field, value) in [(role, "rules", canary.clone()), (binding, "subjects", subject.clone())] {
            let mut it =
                json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": format!("{prefix}-z")}});
            it["metadata"]["namespace"] = json!(namespace);
            it[field] = value;
            if kind == binding {
                it["roleRef"] = json!({"apiGroup": RBAC, "kind": role, "name": format!("{prefix}-z")});
            }
            last.push(create(&client, &object(it)).await);
        }
        fixtures::eventually("the authorizer knows all", async || {
            allowed(&client, (&places[0], "canary"), namespace.map(String::as_str)).await.then_some(())
        })
        .await;
    }
    let mut served = 0;
    for (index, world) in (0..).zip(&all) {
        let account = format!("op-{index}");
        let answer = allowed(&client, (&world.ops, &account), world.mesh.namespace().as_deref()).await;
        let rbac: Vec<_> = world.rbac.iter().map(|object| serde_json::to_string(object).unwrap()).collect();
        assert_eq!(read(world, index), answer, "{}\n{}", serde_json::to_string(&world.mesh).unwrap(), rbac.join("\n"));
        served += u64::from(answer);
    }
    assert!(served > worlds / 10 && served < worlds * 9 / 10, "{served} of {worlds}: the worlds say little");
    for object in all.iter().flat_map(|world| &world.rbac).chain(&last).filter(|o| o.metadata.namespace.is_none()) {
        remove(&client, object).await;
    }
}
