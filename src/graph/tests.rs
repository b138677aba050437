use std::collections::{BTreeMap, BTreeSet};

use kube_core::DynamicObject;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::inventory::{ClusterId, Entry, Inventory};
use crate::object::{ParentRef, ResourceKind, Scope, Uid};

fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

fn object(n: usize) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("a"), &format!("n{n:07}")).unwrap()
}

fn required() -> Requirement {
    Requirement::Required { declared_by: "api".into() }
}

fn preferred(rank: u16) -> Requirement {
    Requirement::Preferred { rule: format!("r{rank}"), rank, evidence: "seen".into() }
}

/// Objects in the order of `ids`, edges between their positions.
fn builder(ids: &[&str], edges: &[(usize, usize, Requirement)]) -> GraphBuilder {
    let mut builder = GraphBuilder::new();
    let slots: Vec<_> = ids.iter().map(|text| builder.add(id(text)).unwrap()).collect();
    for (from, to, requirement) in edges {
        builder.depend(slots[*from], slots[*to], requirement.clone());
    }
    builder
}

fn names(graph: &DependencyGraph, nodes: impl IntoIterator<Item = Node>) -> Vec<String> {
    nodes.into_iter().map(|n| graph.id(n).to_string()).collect()
}

fn cycles(error: Error) -> Vec<Cycle> {
    match error {
        Error::Cycles(cycles) => cycles,
        other => panic!("{other}"),
    }
}

#[test]
fn s01_an_empty_set_has_an_empty_order() {
    let graph = GraphBuilder::new().build().unwrap();
    assert!(graph.is_empty() && graph.apply_order().is_empty() && graph.deletion_order().is_empty());
    assert_eq!((graph.groups(), graph.tree().to_string()), (0, String::new()));
}

#[test]
fn s19_a_chain_across_namespaces_and_scopes() {
    let ids = ["ConfigMap c/x", "Namespace n", "Secret a/x", "Deployment.apps b/x"];
    let graph = builder(&ids, &[(0, 2, required()), (2, 3, required()), (3, 1, required())]).build().unwrap();
    let order = ["Namespace n", "Deployment.apps b/x", "Secret a/x", "ConfigMap c/x"];
    assert_eq!(names(&graph, graph.apply_order()), order);
    assert_eq!(names(&graph, graph.deletion_order().into_iter().rev()), order);
    assert_eq!(graph.height(graph.node(&id("ConfigMap c/x")).unwrap()), 3);
}

#[test]
fn s20_a_diamond_waits_for_both_sides_and_is_shown_once() {
    let ids = ["Base a/base", "Left a/left", "Right a/right", "Top a/top", "User a/user"];
    let edges = [(1, 0), (2, 0), (3, 1), (3, 2), (4, 3)].map(|(from, to)| (from, to, required()));
    let graph = builder(&ids, &edges).build().unwrap();
    let order = names(&graph, graph.deletion_order());
    assert_eq!(order, ["User a/user", "Top a/top", "Left a/left", "Right a/right", "Base a/base"]);
    let base = graph.node(&id("Base a/base")).unwrap();
    assert_eq!(names(&graph, graph.dependents(base).iter().copied()), ["Left a/left", "Right a/right"]);
    assert_eq!(
        graph.tree().to_string(),
        "Base a/base\n\
         ├── Left a/left  (api)\n\
         │   └── Top a/top  (api)\n\
         │       └── User a/user  (api)\n\
         └── Right a/right  (api)\n    \
             └── Top a/top  (api), see above\n"
    );
}

#[test]
fn s25_every_cycle_is_shown_whole_and_the_valid_rest_is_not_blamed() {
    let ids = ["A self", "B one", "B two", "C one", "C three", "C two", "D rest", "D user", "Namespace n"];
    let by = |who: &str| Requirement::Required { declared_by: who.into() };
    let edges = [
        (0, 0, by("api")),
        (1, 2, by("api")),
        (2, 1, by("config.kubernetes.io/depends-on")),
        (3, 5, by("x")),
        (5, 4, by("y")),
        (4, 3, by("z")),
        (7, 6, by("api")),
        (7, 3, by("api")),
        (5, 8, by("api")),
    ];
    let error = builder(&ids, &edges).build().unwrap_err();
    let text = error.to_string();
    let cycles = cycles(error);
    assert_eq!(cycles.len(), 3);
    assert!(cycles[0].is_self_dependency() && !cycles[1].is_self_dependency());
    assert_eq!(
        text,
        "object depends on itself: A self -> A self (declared by api); \
         dependency cycle: B one -> B two (declared by api) -> B one (declared by config.kubernetes.io/depends-on); \
         dependency cycle: C one -> C two (declared by x) -> C three (declared by y) -> C one (declared by z): \
         remove one of the declared dependencies of each cycle"
    );
    for cycle in &cycles {
        let ends = cycle.path.iter().map(|hop| &hop.to);
        let begins = cycle.path.iter().map(|hop| &hop.from).cycle().skip(1);
        assert!(ends.zip(begins).all(|(end, begin)| end == begin));
    }
}

#[test]
fn c24a_a_stored_cycle_is_one_group_and_the_rest_keeps_its_order() {
    let ids = ["A one", "A two", "B before", "C after"];
    let edges = [(0, 1, required()), (1, 0, required()), (2, 0, required()), (1, 3, required()), (3, 3, required())];
    assert_eq!(cycles(builder(&ids, &edges).build().unwrap_err()).len(), 2);

    let graph = builder(&ids, &edges).build_stored();
    let [one, two, before, after] = ids.map(|text| graph.node(&id(text)).unwrap());
    assert_eq!(graph.groups(), 3);
    assert_eq!(graph.group(one), graph.group(two));
    assert_eq!(graph.members(graph.group(two)), [one, two]);
    assert_eq!(graph.members(graph.group(before)), [before]);
    assert_eq!(graph.deletion_order(), [before, one, two, after]);
    assert_eq!((graph.height(after), graph.height(one), graph.height(before)), (0, 1, 2));
    assert!(graph.dependencies(after).is_empty());
    assert_eq!(
        graph.tree().to_string(),
        "C after\n└── cycle of 2, deleted together: A one, A two  (api)\n    └── B before  (api)\n"
    );
}

#[test]
fn c24c_records_that_name_each_other_are_walked_once() {
    let mut inventory = inventory();
    let [a, b] = [id("Inventory.x.io a/a"), id("Inventory.x.io b/b")];
    for (from, to) in [(&a, &b), (&b, &a)] {
        inventory.insert(entry(from, &[Edge::new(to.stable_id(), required())]));
    }
    let graph = DependencyGraph::of_inventory(&inventory);
    assert_eq!((graph.len(), graph.groups()), (2, 1));
}

#[test]
fn s26_the_preferred_edge_of_a_cycle_gives_way_lowest_rank_first() {
    let ids = ["A x", "B x", "C x"];
    let graph = builder(&ids, &[(0, 1, preferred(7)), (1, 2, required()), (2, 0, preferred(3))]).build().unwrap();
    let [a, b, c] = ids.map(|text| graph.node(&id(text)).unwrap());
    assert_eq!(graph.apply_order(), [c, b, a]);
    let [given_up] = graph.given_up() else { panic!("{:?}", graph.given_up()) };
    assert_eq!((given_up.from, given_up.to, &given_up.requirement), (c, a, &preferred(3)));
    assert_eq!(given_up.reason, GiveUpReason::ClosesCycle { back: vec![a, b, c] });
    assert!(
        graph
            .tree()
            .to_string()
            .ends_with("given up:\n  C x on A x  (r3: seen), because A x depends on C x through B x\n")
    );
    // What does not hold is not stored.
    assert_eq!(graph.inventory_edges(c), BTreeSet::new());

    // Among equals the greatest identity gives way.
    let graph = builder(&ids, &[(2, 0, preferred(5)), (0, 1, preferred(5)), (1, 2, preferred(5))]).build().unwrap();
    assert_eq!(graph.given_up().iter().map(|g| (g.from, g.to)).collect::<Vec<_>>(), [(c, a)]);
}

#[test]
fn s26_a_preferred_edge_beside_a_required_one_is_kept() {
    let graph = builder(&["A x", "B x"], &[(0, 1, preferred(1)), (0, 1, required()), (1, 0, preferred(9))]);
    let graph = graph.build().unwrap();
    let [a, b] = [0, 1].map(Node);
    assert!(graph.requires(a, b) && graph.dependencies(a) == [b]);
    assert_eq!(graph.requirements(a, b).collect::<Vec<_>>(), [&required(), &preferred(1)]);
    assert_eq!(graph.given_up().len(), 1);
    assert_eq!(graph.inventory_edges(a).len(), 2);
}

#[test]
fn s27_an_object_outside_of_the_set_is_external_by_identity_and_by_hash() {
    let mut builder = GraphBuilder::new();
    let a = builder.add(id("A x")).unwrap();
    let missing = id("ConfigMap n/missing");
    let later = id("B x");
    builder.depend_on_stable(a, missing.stable_id(), required());
    builder.depend_on_id(a, &missing, required());
    builder.depend_on_id(a, &missing, preferred(3));
    builder.depend_on_stable(a, id("C gone").stable_id(), required());
    builder.depend_on_id(a, &later, required());
    builder.depend_on_stable(a, later.stable_id(), required());
    builder.add(later.clone()).unwrap();
    let graph = builder.build().unwrap();

    let [a, b] = ["A x", "B x"].map(|text| graph.node(&id(text)).unwrap());
    assert_eq!(graph.dependencies(a), [b]);
    assert_eq!(graph.deletion_order(), [a, b]);
    let known: Vec<_> = graph.external(a).iter().map(|e| (e.id.clone(), e.requirement.clone())).collect();
    assert_eq!(known, [(None, required()), (Some(missing.clone()), required()), (Some(missing), preferred(3))]);
    assert!(graph.external(b).is_empty());
    assert_eq!(graph.externals().len(), 3);
    // All of it is stored, and read back it is the same again.
    assert_eq!(graph.inventory_edges(a).len(), 4);
}

#[test]
fn a_duplicate_is_an_error_wherever_it_comes() {
    for ids in [["A x", "A x", "B x"], ["A x", "B x", "A x"], ["B x", "A x", "B x"]] {
        let mut builder = GraphBuilder::new();
        let errors: Vec<_> = ids.iter().filter_map(|text| builder.add(id(text)).err()).collect();
        assert!(matches!(errors.as_slice(), [Error::Duplicate { .. }]), "{ids:?}: {errors:?}");
        assert_eq!(builder.build().unwrap().len(), 2);
    }
}

#[test]
fn an_edge_declared_for_an_object_that_is_not_in_the_set_is_an_error() {
    let mut builder = builder(&["A x"], &[]);
    builder.declare(&Declared::by_api(id("A x"), id("B x"))).unwrap();
    let error = builder.declare(&Declared::by_api(id("B x"), id("A x"))).unwrap_err();
    assert_eq!(error, Error::UnknownObject { from: id("B x"), to: id("A x") });
}

#[test]
fn waived_edges_are_listed_and_hold_nothing() {
    let mut builder = GraphBuilder::new();
    let [a, b] = ["A x", "B x"].map(|text| builder.add(id(text)).unwrap());
    builder.depend(a, b, preferred(1));
    builder.depend(a, b, preferred(2));
    builder.depend(b, a, preferred(3));
    builder.depend_on_id(b, &id("C x"), preferred(3));
    builder.waive_rule("r1", "the author");
    builder.waive_from(b, Waiver::All, "an annotation");
    let graph = builder.build().unwrap();
    let by = |g: &GivenUp| match &g.reason {
        GiveUpReason::Waived { by } => by.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(graph.given_up().iter().map(by).collect::<Vec<_>>(), ["the author", "an annotation"]);
    assert_eq!(graph.externals()[0].waived_by.as_deref(), Some("an annotation"));
    assert_eq!(names(&graph, graph.apply_order()), ["B x", "A x"]);
    assert!(graph.inventory_edges(graph.node(&id("B x")).unwrap()).is_empty());
}

fn inventory() -> Inventory {
    let resource = ResourceKind::new("x.io", "v1", "Parent", "parents", Scope::Namespaced);
    let parent = ParentRef::new(id("Parent.x.io a/p"), Uid::new("u").unwrap(), &resource);
    Inventory::new(parent, ClusterId(Uid::new("c").unwrap()))
}

fn entry(id: &ObjectId, edges: &[Edge]) -> Entry {
    let mut entry = Entry::intended(id.clone(), &ResourceKind::new(id.group(), "v1", id.kind(), "xs", id.scope()));
    entry.edges = edges.iter().cloned().collect();
    entry
}

fn manifest(text: &str, spec: serde_json::Value) -> (ObjectId, DynamicObject) {
    let value = json!({ "apiVersion": "v1", "kind": "X", "metadata": { "name": "x" }, "spec": spec });
    (id(text), serde_json::from_value(value).unwrap())
}

#[test]
fn s22_s23_resources_need_their_definition_and_content_its_namespace() {
    let definition = json!({ "group": "x.io", "names": { "kind": "Widget", "plural": "widgets" } });
    let manifests = [
        manifest("Namespace a", json!({})),
        manifest("Namespace b", json!({})),
        manifest("CustomResourceDefinition.apiextensions.k8s.io widgets.x.io", definition),
        manifest("CustomResourceDefinition.apiextensions.k8s.io broken.x.io", json!({ "group": 3 })),
        manifest("Widget.x.io a/w", json!({})),
        manifest("Widget.x.io global", json!({})),
        manifest("Widget.y.io a/other-group", json!({})),
        manifest("ConfigMap elsewhere/c", json!({})),
    ];
    let set = ManifestSet::new(manifests.iter().map(|(id, object)| (id, object)));
    let mut builder = GraphBuilder::new();
    for manifest in set.iter() {
        builder.add(manifest.id.clone()).unwrap();
    }
    builder.infer(&Rules::standard(), &set);
    let graph = builder.build().unwrap();
    let needs = |text: &str| names(&graph, graph.dependencies(graph.node(&id(text)).unwrap()).iter().copied());
    let crd = "CustomResourceDefinition.apiextensions.k8s.io widgets.x.io";
    assert_eq!(needs("Widget.x.io a/w"), ["Namespace a", crd]);
    assert_eq!(needs("Widget.x.io global"), [crd]);
    assert_eq!(needs("Widget.y.io a/other-group"), ["Namespace a"]);
    assert_eq!(needs("ConfigMap elsewhere/c"), [""; 0]);
    assert!(graph.externals().is_empty() && graph.given_up().is_empty());
    let widget = graph.node(&id("Widget.x.io a/w")).unwrap();
    let evidence: Vec<_> = graph
        .edges(widget)
        .map(|e| match e.requirement {
            Requirement::Preferred { rule, evidence, .. } => format!("{rule}: {evidence}"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        evidence,
        ["in-namespace: metadata.namespace is \"a\"", "of-definition: it defines kind \"Widget\" of group \"x.io\""]
    );
    let rules = Rules::standard().without("in-namespace");
    let names: Vec<_> = rules.iter().map(Rule::name).collect();
    assert!(names.contains(&"of-definition") && !names.contains(&"in-namespace"));
    let ranks: std::collections::BTreeSet<_> = Rules::standard().iter().map(Rule::rank).collect();
    assert_eq!(ranks.len(), Rules::standard().iter().len(), "of two rules it is known which gives way");
    assert_eq!(Rules::none().iter().len(), 0);
}

#[test]
fn a_declared_dependency_of_a_namespace_on_its_content_wins_over_the_rule() {
    let manifests: Vec<_> = ["Namespace a", "ConfigMap a/x", "ConfigMap a/y"].map(|t| manifest(t, json!({}))).into();
    let set = ManifestSet::new(manifests.iter().map(|(id, object)| (id, object)));
    let mut builder = GraphBuilder::new();
    for manifest in set.iter() {
        builder.add(manifest.id.clone()).unwrap();
    }
    builder.infer(&Rules::standard(), &set);
    builder.declare(&Declared::by_api(id("Namespace a"), id("ConfigMap a/x"))).unwrap();
    let graph = builder.build().unwrap();
    assert_eq!(names(&graph, graph.apply_order()), ["ConfigMap a/x", "Namespace a", "ConfigMap a/y"]);
    assert_eq!(graph.given_up().len(), 1);
}

#[test]
fn dot_and_mermaid_escape_what_names_and_rules_may_hold() {
    let mut builder = GraphBuilder::new();
    let odd = ObjectId::new("", "Role", Some("a"), "say \"hi\"\\<b>1;").unwrap();
    let [a, b] = [odd, id("Namespace a")].map(|id| builder.add(id).unwrap());
    builder.depend(a, b, Requirement::Preferred { rule: "bad#1\"\n]".into(), rank: 1, evidence: String::new() });
    let graph = builder.build().unwrap();
    assert_eq!(
        graph.dot().to_string(),
        "digraph dependencies {\n  node [shape=box];\n  n0 [label=\"Namespace a\"];\n  \
         n1 [label=\"Role a/say \\\"hi\\\"\\\\<b>1;\"];\n  n1 -> n0 [style=dashed, label=\"bad#1\\\"\u{fffd}]\"];\n}\n"
    );
    assert_eq!(
        graph.mermaid().to_string(),
        "flowchart TD\n  n0[\"Namespace a\"]\n  n1[\"Role a/say #34;hi#34;#92;#60;b#62;1#59;\"]\n  \
         n1 -.->|\"bad#35;1#34;\u{fffd}]\"| n0\n"
    );
}

#[test]
fn a_stored_cycle_is_boxed_in_drawings() {
    let graph = builder(&["A x", "B x"], &[(0, 1, required()), (1, 0, required())]).build_stored();
    assert!(graph.dot().to_string().contains("subgraph cluster_0 { label=\"deleted together\"; n0; n1; }"));
    assert!(graph.mermaid().to_string().contains("subgraph g0[\"deleted together\"]\n    n0\n    n1\n  end"));
}

/// Runs on the stack of a tokio worker.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(2 << 20).spawn(test).unwrap().join().unwrap();
}

fn numbered(nodes: usize, edges: impl Iterator<Item = (usize, usize)>, requirement: Requirement) -> GraphBuilder {
    let mut builder = GraphBuilder::with_capacity(nodes, nodes);
    let slots: Vec<_> = (0..nodes).map(|n| builder.add(object(n)).unwrap()).collect();
    let reason = builder.reason(requirement);
    for (from, to) in edges {
        builder.depend_because(slots[from], slots[to], reason);
    }
    builder
}

#[test]
fn a_chain_of_a_million_needs_no_deep_stack() {
    on_a_small_stack(|| {
        let nodes = 1_000_000;
        let graph = numbered(nodes, (1..nodes).map(|n| (n, n - 1)), required()).build().unwrap();
        assert!(graph.apply_order().iter().map(|n| n.index()).eq(0..nodes));
        assert!(graph.deletion_order().iter().map(|n| n.index()).eq((0..nodes).rev()));
    });
}

#[test]
fn long_rings_need_no_deep_stack_and_their_paths_are_whole() {
    on_a_small_stack(|| {
        let nodes = 200_000;
        let ring = || (0..nodes).map(|n| (n, (n + 1) % nodes));
        let error = numbered(nodes, ring(), required()).build().unwrap_err();
        assert!(error.to_string().len() < 10_000);
        assert_eq!(cycles(error)[0].path.len(), nodes);
        assert_eq!(numbered(nodes, ring(), required()).build_stored().groups(), 1);
        assert_eq!(numbered(nodes, ring(), preferred(1)).build().unwrap().given_up().len(), 1);
    });
}

#[test]
fn a_hub_that_needs_its_spokes_gives_up_every_spokes_wish_in_linear_time() {
    let spokes = 50_000;
    let mut builder = numbered(spokes + 1, (1..=spokes).map(|n| (0, n)), required());
    let hub = builder.slot(&object(0)).unwrap();
    for n in 1..=spokes {
        let spoke = builder.slot(&object(n)).unwrap();
        builder.depend(spoke, hub, preferred(1));
    }
    let graph = builder.build().unwrap();
    assert_eq!(graph.given_up().len(), spokes);
    assert_eq!(graph.height(graph.node(&object(0)).unwrap()), 1);
}

#[test]
fn drawings_are_linear_in_size() {
    // Layers of two that are joined completely have exponentially many paths.
    let layers = 300;
    let edges = (1..layers).flat_map(|l| [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(a, b)| (2 * l + a, 2 * (l - 1) + b)));
    let graph = numbered(2 * layers, edges, required()).build().unwrap();
    for text in [graph.tree().to_string(), graph.dot().to_string(), graph.mermaid().to_string()] {
        assert!(text.len() < 4 * layers * 200, "{}", text.len());
        assert!(graph.nodes().all(|n| text.contains(graph.id(n).name())));
    }
}

/// A small random graph: edges with the rank of a preferred one, or `None` for required.
fn shapes() -> impl Strategy<Value = (usize, Vec<(usize, usize, Option<u16>)>)> {
    (1_usize..14).prop_flat_map(|nodes| {
        let edge = (0..nodes, 0..nodes, proptest::option::weighted(0.6, 0_u16..4));
        (Just(nodes), proptest::collection::vec(edge, 0..40))
    })
}

/// [`shapes`] whose required edges form no cycle.
fn acyclic_shapes() -> impl Strategy<Value = (usize, Vec<(usize, usize, Option<u16>)>)> {
    shapes().prop_map(|(nodes, mut edges)| {
        edges.retain_mut(|(from, to, rank)| {
            if rank.is_none() {
                (*from, *to) = ((*from).max(*to), (*from).min(*to));
            }
            rank.is_some() || from != to
        });
        (nodes, edges)
    })
}

fn graph_of(nodes: &[usize], edges: &[(usize, usize, Option<u16>)]) -> GraphBuilder {
    let mut builder = GraphBuilder::new();
    let slots: BTreeMap<usize, Slot> = nodes.iter().map(|n| (*n, builder.add(object(*n)).unwrap())).collect();
    for (from, to, rank) in edges {
        builder.depend(slots[from], slots[to], rank.map_or_else(required, preferred));
    }
    builder
}

type Everything = (Vec<Vec<Node>>, Vec<GivenUp>, Vec<Node>, Vec<Node>, Vec<Group>, String);

fn everything(graph: &DependencyGraph) -> Everything {
    (
        graph.nodes().map(|n| graph.dependencies(n).to_vec()).collect(),
        graph.given_up().to_vec(),
        graph.apply_order(),
        graph.deletion_order(),
        graph.nodes().map(|n| graph.group(n)).collect(),
        [graph.tree().to_string(), graph.dot().to_string(), graph.mermaid().to_string()].concat(),
    )
}

/// Whether `from` leads to `to` (which it does to itself), by a search that shares nothing with the crate's.
fn leads(edges: &BTreeSet<(usize, usize)>, from: usize, to: usize) -> bool {
    let mut seen = BTreeSet::from([from]);
    loop {
        let more: BTreeSet<_> = edges.iter().filter(|(a, _)| seen.contains(a)).map(|(_, b)| *b).collect();
        let before = seen.len();
        seen.extend(more);
        if seen.len() == before {
            return seen.contains(&to);
        }
    }
}

proptest! {
    #[test]
    fn orders_respect_every_edge_that_holds((nodes, edges) in acyclic_shapes()) {
        let graph = graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build().unwrap();
        let place = |order: Vec<Node>| order.into_iter().enumerate().map(|(i, n)| (n, i)).collect::<BTreeMap<_, _>>();
        let (apply, deletion) = (place(graph.apply_order()), place(graph.deletion_order()));
        prop_assert_eq!((apply.len(), deletion.len()), (nodes, nodes));
        for from in graph.nodes() {
            let mut height = 0;
            for to in graph.dependencies(from) {
                prop_assert!(apply[to] < apply[&from] && deletion[&from] < deletion[to]);
                prop_assert!(graph.dependents(*to).contains(&from));
                height = height.max(graph.height(*to) + 1);
            }
            prop_assert_eq!(graph.height(from), height);
        }
        // No edge is lost: what does not hold is listed, what is required holds.
        let given_up: BTreeSet<_> =
            graph.given_up().iter().map(|g| (g.from.index(), g.to.index(), g.requirement.clone())).collect();
        for (from, to, rank) in &edges {
            let requirement = rank.map_or_else(required, preferred);
            let holds = graph.edges(Node::at(*from)).any(|e| e.to.index() == *to && *e.requirement == requirement);
            prop_assert!(holds != given_up.contains(&(*from, *to, requirement)));
        }
    }

    #[test]
    fn what_is_given_up_closed_a_cycle_and_the_least_worthy_gave_way((nodes, edges) in acyclic_shapes()) {
        let graph = graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build().unwrap();
        let worth = |r: &Requirement| match r {
            Requirement::Required { .. } => u32::MAX,
            Requirement::Preferred { rank, .. } => u32::from(*rank),
        };
        for given_up in graph.given_up() {
            let (from, to) = (given_up.from.index(), given_up.to.index());
            let GiveUpReason::ClosesCycle { back } = &given_up.reason else { panic!("nothing was waived") };
            prop_assert_eq!((back.first(), back.last()), (Some(&given_up.to), Some(&given_up.from)));
            for pair in back.windows(2) {
                prop_assert!(graph.requirements(pair[0], pair[1]).next().is_some());
            }
            // Edges worth less did not push it out, nor did greater ones of the same rank.
            let rivals: BTreeSet<_> = graph
                .nodes()
                .flat_map(|n| graph.edges(n).map(move |e| (n.index(), e.to.index(), worth(e.requirement))))
                .filter(|(a, b, w)| {
                    let own = worth(&given_up.requirement);
                    *w > own || (*w == own && (*a, *b) < (from, to))
                })
                .map(|(a, b, _)| (a, b))
                .collect();
            prop_assert!(leads(&rivals, to, from));
        }
    }

    #[test]
    fn the_result_does_not_depend_on_the_order_of_input(
        ((nodes, edges), shuffled_nodes, shuffled_edges) in shapes().prop_flat_map(|(nodes, edges)| (
            Just((nodes, edges.clone())),
            Just((0..nodes).collect::<Vec<_>>()).prop_shuffle(),
            Just(edges).prop_shuffle(),
        )),
    ) {
        let sorted: Vec<_> = (0..nodes).collect();
        prop_assert_eq!(
            everything(&graph_of(&sorted, &edges).build_stored()),
            everything(&graph_of(&shuffled_nodes, &shuffled_edges).build_stored())
        );
        match (graph_of(&sorted, &edges).build(), graph_of(&shuffled_nodes, &shuffled_edges).build()) {
            (Ok(one), Ok(other)) => prop_assert_eq!(everything(&one), everything(&other)),
            (Err(one), Err(other)) => prop_assert_eq!(one, other),
            _ => prop_assert!(false, "one order is an error, the other is not"),
        }
    }

    #[test]
    fn groups_are_the_required_cycles_and_have_none_among_them((nodes, edges) in shapes()) {
        let graph = graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build_stored();
        let required: BTreeSet<_> =
            edges.iter().filter(|(_, _, rank)| rank.is_none()).map(|(from, to, _)| (*from, *to)).collect();
        for a in graph.nodes() {
            for b in graph.nodes() {
                let together = leads(&required, a.index(), b.index()) && leads(&required, b.index(), a.index());
                prop_assert_eq!(graph.group(a) == graph.group(b), together);
            }
            for to in graph.dependencies(a) {
                let same = graph.group(a) == graph.group(*to);
                prop_assert!(same || graph.height(a) > graph.height(*to));
            }
            prop_assert!(graph.members(graph.group(a)).contains(&a));
        }
        prop_assert!((0..graph.groups()).all(|g| graph.members(Group::at(g)).iter().all(|n| graph.group(*n).index() == g)));
        let has_cycle = graph.groups() < nodes || required.iter().any(|(from, to)| from == to);
        prop_assert_eq!(graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build().is_err(), has_cycle);
    }

    #[test]
    fn a_cycle_in_an_error_is_made_of_declared_edges((nodes, edges) in shapes()) {
        if let Err(error) = graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build() {
            for cycle in cycles(error) {
                for (hop, next) in cycle.path.iter().zip(cycle.path.iter().cycle().skip(1)) {
                    prop_assert_eq!(&hop.to, &next.from);
                    let declared = |(from, to, rank): &(usize, usize, Option<u16>)| {
                        rank.is_none() && object(*from) == hop.from && object(*to) == hop.to
                    };
                    prop_assert!(edges.iter().any(declared));
                }
            }
        }
    }

    #[test]
    fn stored_edges_give_the_same_graph_again((nodes, edges) in acyclic_shapes()) {
        let graph = graph_of(&(0..nodes).collect::<Vec<_>>(), &edges).build().unwrap();
        let mut inventory = inventory();
        for node in graph.nodes() {
            inventory.insert(entry(graph.id(node), &Vec::from_iter(graph.inventory_edges(node))));
        }
        let stored = DependencyGraph::of_inventory(&inventory);
        prop_assert_eq!(stored.given_up().len(), 0);
        prop_assert_eq!(stored.deletion_order(), graph.deletion_order());
        for node in graph.nodes() {
            prop_assert_eq!(stored.inventory_edges(node), graph.inventory_edges(node));
        }
    }
}
