//! Who serves what, with which rights.

use super::*;

/// An operator with its account and a binding to `role`.
fn operator(role: &str) -> World {
    World::new([
        account("ops/operator"),
        deployment("ops/operator", "operator"),
        binding("operator", role, &[subject("ops/operator")]),
        mesh("app/mesh"),
    ])
}

/// Whether the operator serves the mesh, by name or at least by wildcard.
fn serves(role: Value) -> Option<&'static str> {
    let world = operator("operator").and([role]);
    let expected = ["Mesh mesh -> Deployment operator"];
    match (world.edges("served-by"), world.edges("served-by-wildcard")) {
        (by_name, others) if by_name == expected && others.is_empty() => Some("name"),
        (by_name, others) if by_name.is_empty() && others == expected => Some("wildcard"),
        (by_name, others) => {
            assert!(by_name.is_empty() && others.is_empty(), "{by_name:?} {others:?}");
            None
        }
    }
}

#[test]
fn c12_s31_a_custom_resource_goes_before_the_operator_that_serves_it() {
    for (expected, groups, resources, verbs) in [
        (Some("name"), "mesh.example.com", "meshes", "update"),
        (Some("name"), "mesh.example.com", "meshes", "patch"),
        (Some("name"), "mesh.example.com", "meshes", "*"),
        (Some("name"), "mesh.example.com", "meshes/status", "patch"),
        (Some("name"), "mesh.example.com", "meshes/finalizers", "update"),
        (Some("name"), "*", "meshes", "update"),
        (Some("wildcard"), "mesh.example.com", "*", "update"),
        (Some("wildcard"), "mesh.example.com", "*/status", "update"),
        (Some("wildcard"), "*", "*/finalizers", "update"),
        (Some("wildcard"), "*", "*", "*"),
        // As the API server reads it, this is a literal.
        (None, "mesh.example.com", "meshes/*", "update"),
        (None, "mesh.example.com", "meshes/scale", "update"),
        (None, "mesh.example.com", "meshes", "get"),
        (None, "mesh.example.com", "meshes", "delete"),
        (None, "mesh.example.com", "gateways", "update"),
        (None, "other.example.com", "meshes", "update"),
        (None, "", "meshes", "update"),
    ] {
        let found = serves(cluster_role("operator", &[groups], &[resources], &[verbs]));
        assert_eq!(found, expected, "{groups} {resources} {verbs}");
    }
}

#[test]
fn resource_names_and_namespaces_confine_what_is_served() {
    let named = |names: &[&str]| {
        let mut role = cluster_role("operator", &["mesh.example.com"], &["meshes"], &["update"]);
        role["rules"][0]["resourceNames"] = json!(names);
        serves(role)
    };
    assert_eq!((named(&["mesh"]), named(&["other"]), named(&[])), (Some("name"), None, Some("name")));

    let role = || cluster_role("meshes", &["mesh.example.com"], &["meshes"], &["update"]);
    let bound_in = |place: &str, resource: &str| {
        let set = [account("ops/operator"), deployment("ops/operator", "operator"), role(), mesh(resource)];
        World::new(set).and([binding(place, "meshes", &[subject("ops/operator")])]).edges("served-by")
    };
    let served = ["Mesh mesh -> Deployment operator"];
    assert_eq!(bound_in("app/b", "app/mesh"), served, "a ClusterRole in one namespace");
    assert!(bound_in("ops/b", "app/mesh").is_empty(), "another namespace");
    assert!(bound_in("app/b", "mesh").is_empty(), "cluster scope is beyond a RoleBinding");
    assert_eq!(bound_in("b", "mesh"), served);
}

#[test]
fn accounts_are_named_in_several_ways() {
    let role = || cluster_role("meshes", &["mesh.example.com"], &["meshes"], &["update"]);
    let bound = |subject: Value| {
        let set = [deployment("ops/operator", "operator"), role(), mesh("app/mesh")];
        let world = World::new(set).and([binding("b", "meshes", &[subject])]);
        (world.edges("served-by").len(), world.edges("served-by-wildcard").len(), world.edges("account-rights").len())
    };
    let group = |name: &str| json!({"kind": "Group", "name": name});
    let user = |name: &str| json!({"kind": "User", "name": name});
    assert_eq!(bound(subject("ops/operator")), (1, 0, 2));
    assert_eq!(bound(user("system:serviceaccount:ops:operator")), (1, 0, 2));
    assert_eq!(bound(group("system:serviceaccounts:ops")), (1, 0, 2));
    // What everybody may do makes nobody the one who serves.
    assert_eq!(bound(group("system:serviceaccounts")), (0, 1, 2));
    assert_eq!(bound(group("system:authenticated")), (0, 1, 2));
    for nobody in [subject("ops/other"), subject("app/operator"), user("operator"), group("system:masters")] {
        assert_eq!(bound(nobody.clone()), (0, 0, 0), "{nobody}");
    }
}

#[test]
fn an_administrators_workload_serves_what_nobody_else_does() {
    let admin = || {
        [
            account("ci/admin"),
            deployment("ci/admin", "admin"),
            binding("admins", "cluster-admin", &[subject("ci/admin")]),
        ]
    };
    let everything = || cluster_role("cluster-admin", &["*"], &["*"], &["*"]);
    let role = cluster_role("operator", &["mesh.example.com"], &["meshes/finalizers"], &["update"]);
    let served = operator("operator").and([role]).and(admin()).beside([everything()]);
    assert_eq!(served.edges("served-by"), ["Mesh mesh -> Deployment operator"]);
    assert!(served.edges("served-by-wildcard").is_empty());
    let unserved = World::new(admin()).and([mesh("app/mesh")]).beside([everything()]);
    assert!(unserved.edges("served-by").is_empty());
    assert_eq!(unserved.edges("served-by-wildcard"), ["Mesh mesh -> Deployment admin"]);
}

#[test]
fn roles_outside_of_the_set_are_asked_for_and_never_part_of_the_order() {
    let world = operator("outside").and([binding("unused", "unused", &[subject("ops/nobody")])]);
    let wanted = Rules::standard().context(&world.manifests());
    assert_eq!(
        wanted.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["ClusterRole.rbac.authorization.k8s.io outside"]
    );
    assert!(world.edges("served-by").is_empty());
    let live = cluster_role("outside", &["mesh.example.com"], &["meshes"], &["update"]);
    let world = world.beside([live]);
    assert_eq!(world.edges("served-by"), ["Mesh mesh -> Deployment operator"]);
    let graph = world.graph();
    assert!(graph.externals().is_empty() && graph.len() == world.set.len());
    assert!(Rules::none().context(&world.manifests()).is_empty());
    // Nobody asks whom a set without custom resources serves.
    let plain = World::new([deployment("ops/o", "o"), binding("o", "outside", &[subject("ops/o")])]);
    assert!(Rules::standard().context(&plain.manifests()).is_empty());
}

#[test]
fn aggregated_roles_have_the_rules_of_their_parts() {
    let select = json!({"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]});
    let aggregated = |rules: Value| {
        let more = json!({"aggregationRule": select, "rules": rules});
        object("rbac.authorization.k8s.io/v1", "ClusterRole", "whole", more)
    };
    let labelled = |name: &str, label: &str, resource: &str| {
        let mut part = cluster_role(name, &["mesh.example.com"], &[resource], &["update"]);
        part["metadata"]["labels"] = json!({"part": label});
        part
    };
    let own = json!([{"apiGroups": ["mesh.example.com"], "resources": ["meshes"], "verbs": ["update"]}]);
    let world = |part: Value| operator("whole").and([aggregated(own.clone()), part]);
    assert_eq!(world(labelled("part", "yes", "meshes")).edges("served-by"), ["Mesh mesh -> Deployment operator"]);
    assert!(world(labelled("part", "no", "meshes")).edges("served-by").is_empty(), "its own rules are overwritten");
    assert_eq!(
        world(labelled("part", "yes", "x")).edges("binds"),
        [
            "ClusterRole whole -> ClusterRole part",
            "ClusterRoleBinding operator -> ServiceAccount operator",
            "ClusterRoleBinding operator -> ClusterRole whole",
        ]
    );
    // A live one has what was aggregated into it, and gains what the set brings.
    let live = operator("whole").beside([aggregated(own.clone())]);
    assert_eq!(live.edges("served-by").len(), 1);
    let live = operator("whole").and([labelled("part", "yes", "meshes")]).beside([aggregated(json!([]))]);
    assert_eq!(live.edges("served-by").len(), 1);
    // Two that select each other.
    let mut other = aggregated(json!([]));
    other["metadata"] = json!({"name": "other", "labels": {"part": "yes"}});
    let mut whole = aggregated(json!([]));
    whole["metadata"]["labels"] = json!({"part": "yes"});
    let round = operator("whole").and([whole, other, labelled("part", "yes", "meshes")]);
    assert_eq!(round.edges("served-by").len(), 1);
    assert_eq!(round.graph().given_up().len(), 1, "one of the two directions");
}

#[test]
fn c13_an_account_without_a_namespace_is_in_that_of_its_role_binding() {
    for subject in [
        json!({"kind": "ServiceAccount", "name": "operator"}),
        json!({"kind": "ServiceAccount", "name": "operator", "namespace": ""}),
    ] {
        let world = |name: &str, role: &str| {
            World::new([
                account("ops/operator"),
                deployment("ops/operator", "operator"),
                object("rbac.authorization.k8s.io/v1", "Role", "ops/r", json!({})),
                cluster_role("r", &["mesh.example.com"], &["meshes"], &["update"]),
                binding(name, role, std::slice::from_ref(&subject)),
            ])
        };
        let local = world("ops/b", "ops/r");
        assert_eq!(local.edges("binds"), ["RoleBinding b -> ServiceAccount operator", "RoleBinding b -> Role r"]);
        assert_eq!(
            local.edges("account-rights"),
            ["Deployment operator -> Role r", "Deployment operator -> RoleBinding b"]
        );
        // In a ClusterRoleBinding, which the API server refuses so, it would be nobody.
        let wide = world("b", "r");
        assert_eq!(wide.edges("binds"), ["ClusterRoleBinding b -> ClusterRole r"]);
        assert!(wide.edges("account-rights").is_empty());
    }
}

#[test]
fn a_workload_goes_before_the_rights_of_its_account() {
    let role = object("rbac.authorization.k8s.io/v1", "Role", "ops/r", json!({}));
    let world = World::new([
        account("ops/operator"),
        deployment("ops/operator", "operator"),
        role,
        binding("ops/b", "ops/r", &[subject("ops/operator"), subject("ops/other")]),
    ]);
    assert_eq!(
        world.edges("account-rights"),
        ["Deployment operator -> Role r", "Deployment operator -> RoleBinding b"]
    );
    assert_eq!(world.edges("binds"), ["RoleBinding b -> ServiceAccount operator", "RoleBinding b -> Role r"]);
}

#[test]
fn c13_an_account_and_its_rights_outlive_the_resource_that_impersonates_it() {
    let mut app =
        object("kappctrl.k14s.io/v1alpha1", "App", "a/app", json!({"spec": {"serviceAccountName": "worker"}}));
    let set = |app: &Value| {
        World::new([
            account("a/worker"),
            object("rbac.authorization.k8s.io/v1", "Role", "a/r", json!({})),
            binding("a/b", "a/r", &[subject("a/worker")]),
            app.clone(),
        ])
    };
    assert_eq!(
        set(&app).edges("impersonates"),
        ["App app -> ServiceAccount worker", "App app -> Role r", "App app -> RoleBinding b"]
    );
    app["spec"]["serviceAccountName"] = json!("elsewhere");
    assert!(set(&app).edges("impersonates").is_empty());
    app = object("example.com/v1", "App", "b/app", json!({"spec": {"serviceAccountName": "worker"}}));
    assert!(set(&app).edges("impersonates").is_empty(), "an account of another namespace is not meant");
}
