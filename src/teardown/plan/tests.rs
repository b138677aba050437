use super::*;
use crate::teardown::proof::Step;

fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

fn objects(ids: &[&str]) -> Vec<LiveRef> {
    ids.iter().map(|text| LiveRef::new(id(text), Uid::new("u").unwrap())).collect()
}

fn order(plan: &Plan) -> Vec<String> {
    plan.rows().iter().map(ToString::to_string).collect()
}

#[test]
fn dependents_go_first_and_kept_objects_keep_what_they_need() {
    let plan = Teardown::new(objects(&["ConfigMap a/base", "ConfigMap a/top", "ConfigMap a/other", "Namespace a"]))
        .edges([(id("ConfigMap a/top"), id("ConfigMap a/base"))])
        .rules(Rules::standard())
        .keep(id("ConfigMap a/top"))
        .plan()
        .unwrap();
    assert_eq!(
        order(&plan),
        [
            "keep ConfigMap a/top",
            "keep ConfigMap a/base, because ConfigMap a/top is kept",
            "delete ConfigMap a/other",
            "keep Namespace a, because ConfigMap a/top is kept",
        ]
    );
    let tree = plan.tree().to_string();
    assert!(tree.contains("keep ConfigMap a/base, because ConfigMap a/top is kept"), "{tree}");
    assert!(plan.dot().to_string().starts_with("digraph") && plan.mermaid().to_string().starts_with("flowchart"));
}

#[test]
fn the_rows_are_what_is_carried_out() {
    let plan = Teardown::new(objects(&["ConfigMap a/one", "ConfigMap a/two"])).keep(id("ConfigMap a/one")).plan();
    let plan = plan.unwrap();
    let mut course = plan.course();
    let asked: Vec<_> = std::iter::from_fn(|| course.next_request()).collect();
    assert!(asked.iter().all(|(_, step)| *step == Step::Get), "it looks before it deletes: {asked:?}");
    assert_eq!(course.rows(), plan.rows());
}

#[test]
fn a_definition_goes_after_what_it_may_define_even_without_manifest() {
    let set =
        ["CustomResourceDefinition.apiextensions.k8s.io foos.example.com", "Foo.example.com a/x", "ConfigMap a/y"];
    let teardown = Teardown::new(objects(&set)).rules(Rules::standard());
    let waits = |plan: &Plan| {
        let node = plan.graph().node(&id(set[0])).unwrap();
        plan.graph().dependents(node).iter().map(|n| plan.graph().id(*n).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(waits(&teardown.clone().plan().unwrap()), ["Foo.example.com a/x"]);
    let others = ResourceKind::new("example.com", "v1", "Foo", "others", Scope::Namespaced);
    assert!(waits(&teardown.clone().kinds([others]).plan().unwrap()).is_empty(), "it is known to define another kind");
    let without = teardown.rules(Rules::standard().without("of-definition"));
    assert!(waits(&without.plan().unwrap()).is_empty());
}

#[test]
fn what_has_no_order_is_an_error_before_anything_is_sent() {
    let pair = || Teardown::new(objects(&["ConfigMap a/x", "ConfigMap a/y"]));
    let cycle = [(id("ConfigMap a/x"), id("ConfigMap a/y")), (id("ConfigMap a/y"), id("ConfigMap a/x"))];
    let error = pair().edges(cycle).plan().unwrap_err();
    assert!(matches!(&error, Error::Order { source: graph::Error::Cycles(_) }), "{error}");
    let stranger = [(id("ConfigMap a/z"), id("ConfigMap a/y"))];
    assert!(matches!(pair().edges(stranger).plan(), Err(Error::Order { source: graph::Error::UnknownObject { .. } })));
    assert!(matches!(pair().keep(id("ConfigMap a/z")).plan(), Err(Error::KeepUnknown { .. })));
    assert!(matches!(
        Teardown::new(objects(&["ConfigMap a/x", "ConfigMap a/x"])).plan(),
        Err(Error::Order { source: graph::Error::Duplicate { .. } })
    ));
}

#[test]
fn an_object_outside_of_the_set_holds_nothing_back() {
    let plan = Teardown::new(objects(&["ConfigMap a/x"])).edges([(id("ConfigMap a/x"), id("ConfigMap b/y"))]).plan();
    assert_eq!(order(&plan.unwrap()), ["delete ConfigMap a/x"]);
}

#[test]
fn a_namespaced_kind_without_namespace_is_blocked_by_name() {
    let maps = ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
    let plan = Teardown::new(objects(&["ConfigMap x"])).kinds([maps]).plan().unwrap();
    let row = &plan.rows()[0];
    assert!(matches!(&row.verdict, Verdict::Blocked(block) if block.reason == Reason::Unknown), "{row}");
    assert!(row.to_string().contains("set metadata.namespace"), "{row}");
}
