//! What holds for every set.

use proptest::prelude::*;

use super::*;

/// Objects of all kinds that rules look at, with few names, so that they refer to each other.
fn any_object() -> impl Strategy<Value = Value> {
    let name = || (0_u8..3).prop_map(|n| format!("n{n}"));
    let place = || (0_u8..2, 0_u8..3).prop_map(|(ns, n)| format!("ns{ns}/n{n}"));
    let resource = proptest::sample::select(vec!["meshes", "meshes/status", "things", "*", "*/finalizers"]);
    let group = proptest::sample::select(vec!["mesh.example.com", "*", "thing.example.com"]);
    let selector = proptest::sample::select(vec![json!({}), json!({"matchLabels": {"app": "n1"}})]);
    let subjects = prop_oneof![
        place().prop_map(|place| subject(&place)),
        Just(json!({"kind": "Group", "name": "system:serviceaccounts:ns1"})),
        Just(json!({"kind": "Group", "name": "system:authenticated"})),
    ];
    let template = |account: &str, name: &str| {
        let pod = json!({
            "serviceAccountName": account, "containers": [{"envFrom": [{"secretRef": {"name": name}}]}],
            "volumes": [{"persistentVolumeClaim": {"claimName": name}}, {"configMap": {"name": name}}],
        });
        json!({"spec": {"template": {"metadata": {"labels": {"app": name}}, "spec": pod}, "serviceAccountName": account}})
    };
    let plain = proptest::sample::select(vec!["ServiceAccount", "Secret", "ConfigMap", "ResourceQuota"]);
    prop_oneof![
        (plain, place()).prop_map(|(kind, place)| object("v1", kind, &place, json!({}))),
        (0_u8..2).prop_map(|n| object("v1", "Namespace", &format!("ns{n}"), json!({}))),
        (place(), name(), name()).prop_map(move |(place, a, n)| object(
            "apps/v1",
            "Deployment",
            &place,
            template(&a, &n)
        )),
        (place(), name(), name()).prop_map(move |(place, a, n)| object(
            "thing.example.com/v1",
            "Thing",
            &place,
            template(&a, &n)
        )),
        place().prop_map(|place| mesh(&place)),
        (name(), group, resource).prop_map(|(name, group, resource)| {
            let mut role = cluster_role(&name, &[group], &[resource], &["update"]);
            role["metadata"]["labels"] = json!({"app": name});
            role
        }),
        name().prop_map(|name| {
            let selector = json!({"matchLabels": {"app": "n1"}});
            let rule = json!({"aggregationRule": {"clusterRoleSelectors": [selector]}, "labels": {"app": "n1"}});
            object("rbac.authorization.k8s.io/v1", "ClusterRole", &name, rule)
        }),
        (name(), name(), subjects).prop_map(|(name, role, subject)| binding(&name, &role, &[subject])),
        (place(), name()).prop_map(|(place, app)| object(
            "v1",
            "Service",
            &place,
            json!({"spec": {"selector": {"app": app}}})
        )),
        (place(), selector.clone()).prop_map(|(place, selector)| {
            object("networking.k8s.io/v1", "NetworkPolicy", &place, json!({"spec": {"podSelector": selector}}))
        }),
        (name(), place(), selector, proptest::sample::select(vec!["*", "mesh.example.com", "apps"])).prop_map(
            |(name, service, selector, group)| {
                let (namespace, service) = service.split_once('/').unwrap();
                let rules = json!([{"apiGroups": [group], "resources": ["*"], "operations": ["*"]}]);
                let call = json!({"service": {"namespace": namespace, "name": service}});
                let webhook = json!({"name": "w", "rules": rules, "clientConfig": call, "objectSelector": selector});
                let webhooks = json!({"webhooks": [webhook]});
                object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", &name, webhooks)
            }
        ),
        place().prop_map(|place| {
            let (namespace, service) = place.split_once('/').unwrap();
            let call = json!({"webhook": {"clientConfig": {"service": {"namespace": namespace, "name": service}}}});
            let names = json!({"kind": "Mesh", "plural": "meshes"});
            let spec = json!({"group": "mesh.example.com", "names": names, "conversion": call});
            let name = "meshes.mesh.example.com";
            object("apiextensions.k8s.io/v1", "CustomResourceDefinition", name, json!({"spec": spec}))
        }),
    ]
}

fn any_world() -> impl Strategy<Value = World> {
    proptest::collection::vec(any_object(), 0..24).prop_map(|values| {
        let mut world = World::new(values);
        world.set.sort_by(|a, b| a.0.cmp(&b.0));
        world.set.dedup_by(|a, b| a.0 == b.0);
        world
    })
}

fn all(graph: &DependencyGraph) -> Vec<String> {
    let holds = graph.nodes().flat_map(|from| graph.edges(from).map(move |edge| (from, edge)));
    let holds = holds.map(|(from, e)| format!("{} -> {} {:?}", graph.id(from), graph.id(e.to), e.requirement));
    holds.chain(graph.given_up().iter().map(|g| format!("{g:?}"))).collect()
}

/// The pairs that rules find, whether or not they hold, by their whole identities: several objects have one name.
fn pairs(world: &World, rules: &Rules) -> Vec<(ObjectId, ObjectId)> {
    let graph = world.graph_by(rules);
    let held = graph.nodes().flat_map(|from| graph.edges(from).map(move |edge| (from, edge.to)));
    let all = held.chain(graph.given_up().iter().map(|g| (g.from, g.to)));
    let all: BTreeSet<_> = all.map(|(from, to)| (graph.id(from).clone(), graph.id(to).clone())).collect();
    all.into_iter().collect()
}

proptest! {
    #[test]
    fn the_order_of_manifests_means_nothing(world in any_world(), turn in 0_usize..24) {
        let before = all(&world.graph());
        let mut turned = world;
        let length = turned.set.len();
        turned.set.rotate_left(if length == 0 { 0 } else { turn % length });
        turned.set.reverse();
        prop_assert_eq!(before, all(&turned.graph()));
    }

    #[test]
    fn nothing_depends_on_itself_or_round_about_or_on_what_is_not_there(world in any_world()) {
        let graph = world.graph();
        prop_assert!(graph.externals().is_empty());
        for node in graph.nodes() {
            prop_assert!(!graph.dependencies(node).contains(&node));
            prop_assert_eq!(graph.members(graph.group(node)).len(), 1);
        }
        for given_up in graph.given_up() {
            prop_assert_ne!(given_up.from, given_up.to);
        }
        prop_assert_eq!(graph.deletion_order().len(), world.set.len());
    }

    #[test]
    fn an_administrators_workload_becomes_nobodys_server_who_has_one(world in any_world()) {
        let by_name = Rules::none().with(ServedBy);
        let all = by_name.clone().with(ServedByWildcard);
        let before = pairs(&world, &all);
        let world = world.and([
            account("ci/admin"),
            deployment("ci/admin", "admin"),
            binding("admins", "cluster-admin", &[subject("ci/admin")]),
        ]);
        let world = world.beside([cluster_role("cluster-admin", &["*"], &["*"], &["*"])]);
        let (admin, others): (Vec<_>, Vec<_>) =
            pairs(&world, &all).into_iter().partition(|(_, server)| server.namespace() == Some("ci"));
        prop_assert_eq!(&before, &others, "no other server was lost or gained");
        let named = pairs(&world, &by_name);
        for (served, _) in admin {
            prop_assert!(!named.iter().any(|(resource, _)| *resource == served), "{} is served by name", served);
        }
    }
}
