//! Laws of a course, on random graphs against an API server in memory that gives random answers.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    answer::Refusal,
    graph::GraphBuilder,
    inventory::Requirement,
    object::{ResourceKind, Scope, Uid},
    teardown::{Authority, Reason, Subject},
};

const KINDS: usize = 4;

fn map(n: usize) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("a"), &format!("n{n:02}")).unwrap()
}

fn maps() -> ResourceKind {
    ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
}

fn graph(nodes: usize, edges: &[(usize, usize, bool)]) -> Arc<DependencyGraph> {
    let mut builder = GraphBuilder::new();
    let slots: Vec<_> = (0..nodes).map(|n| builder.add(map(n)).unwrap()).collect();
    for (from, to, required) in edges {
        let (from, to) = (from % nodes, to % nodes);
        if from == to {
            continue;
        }
        let requirement = match required {
            true => Requirement::Required { declared_by: "api".into() },
            false => Requirement::Preferred { rule: "r".into(), rank: 100, evidence: String::new() },
        };
        builder.depend(slots[from], slots[to], requirement);
    }
    Arc::new(builder.build_stored())
}

/// One object in the API server.
#[derive(Clone, Debug)]
struct Stored {
    uid: Uid,
    version: u64,
    finalizer: bool,
    terminating: bool,
    keep: bool,
}

/// What befalls a request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// It never arrives.
    Unsent,
    /// It takes effect, and the answer is lost.
    Lost,
    /// Admission, RBAC, throttling, an unserved version.
    Refused(usize),
    /// Somebody writes to the object just before.
    Written,
    /// Somebody deletes and recreates the object just before.
    Recreated,
    /// Somebody marks it as one to keep just before.
    Marked,
    /// A finalizer is put on it just before.
    Held,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Unsent),
        1 => Just(Fault::Lost),
        1 => (0..KINDS).prop_map(Fault::Refused),
        1 => Just(Fault::Written),
        1 => Just(Fault::Recreated),
        1 => Just(Fault::Marked),
        1 => Just(Fault::Held),
    ]
}

/// An API server in memory, with what the course asked of it.
#[derive(Debug)]
struct Server {
    objects: BTreeMap<Node, Stored>,
    clock: u64,
    /// Incarnations whose DELETE took effect.
    effective: Vec<Uid>,
}

fn failure(code: u16, reason: &str, message: &str, details: serde_json::Value) -> Event {
    let status = json!({"status": "Failure", "code": code, "reason": reason, "message": message, "details": details});
    let status: kube_core::Status = serde_json::from_value(status).unwrap();
    Event::Refused(Refusal::about(&map(0), &kube_client::Error::Api(Box::new(status))))
}

impl Stored {
    fn live(&self) -> Live {
        let keep = self.keep.then(|| BTreeMap::from([("helm.sh/resource-policy".to_owned(), "keep".to_owned())]));
        let meta = ObjectMeta {
            uid: Some(self.uid.to_string()),
            resource_version: Some(self.version.to_string()),
            annotations: keep,
            finalizers: self.finalizer.then(|| vec!["example.com/hold".to_owned()]),
            deletion_timestamp: self.terminating.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        };
        Live::of(&meta, None).unwrap()
    }
}

impl Server {
    fn befall(&mut self, node: Node, fault: Fault) {
        self.clock += 1;
        let version = self.clock;
        let Some(object) = self.objects.get_mut(&node) else { return };
        match fault {
            Fault::Written => object.version = version,
            Fault::Marked => (object.keep, object.version) = (true, version),
            Fault::Held if !object.terminating => (object.finalizer, object.version) = (true, version),
            Fault::Recreated => {
                let uid = Uid::new(format!("again-{version}")).unwrap();
                *object = Stored { uid, version, finalizer: false, terminating: false, keep: false };
            }
            _ => {}
        }
    }

    fn not_found(name: &str) -> Event {
        failure(404, "NotFound", "not found", json!({"kind": "configmaps", "name": name}))
    }

    fn serve(&mut self, name: &str, node: Node, step: &Step, fault: Fault) -> Event {
        self.befall(node, fault);
        match fault {
            Fault::Unsent => return failure(503, "ServiceUnavailable", "no", json!({})),
            Fault::Refused(0) => {
                return failure(422, "Invalid", "admission webhook \"w\" denied the request: no", json!({}));
            }
            Fault::Refused(1) => return failure(403, "Forbidden", "User \"u\" cannot delete", json!({})),
            Fault::Refused(2) => return failure(429, "TooManyRequests", "later", json!({})),
            Fault::Refused(_) => return failure(404, "", "404 page not found", json!({})),
            _ => {}
        }
        let answer = self.carry_out(name, node, step);
        if matches!(fault, Fault::Lost) { Event::Unknown("no answer".into()) } else { answer }
    }

    fn carry_out(&mut self, name: &str, node: Node, step: &Step) -> Event {
        match (step, self.objects.get_mut(&node)) {
            (Step::Resolve, _) => Event::Resolved(Some(maps())),
            (Step::Detach(_), _) => Event::Detached,
            (_, None) => Self::not_found(name),
            (Step::Get, Some(object)) => Event::Live(object.live()),
            (Step::Delete { uid, resource_version }, Some(object)) => {
                if *uid != object.uid {
                    return failure(409, "Conflict", "the UID in the precondition does not match", json!({}));
                }
                if resource_version.as_ref().is_some_and(|v| *v != object.version.to_string()) {
                    return failure(409, "Conflict", "the ResourceVersion in the precondition", json!({}));
                }
                if !object.terminating {
                    self.effective.push(uid.clone());
                }
                if object.finalizer {
                    if !object.terminating {
                        self.clock += 1;
                        (object.terminating, object.version) = (true, self.clock);
                    }
                    return Event::DeleteObject(object.live());
                }
                self.objects.remove(&node);
                Event::DeleteStatus(Some(uid.clone()))
            }
            (step, _) => panic!("not a request: {step:?}"),
        }
    }
}

#[derive(Clone, Debug)]
struct World {
    nodes: usize,
    edges: Vec<(usize, usize, bool)>,
    kept: Vec<usize>,
    absent: Vec<usize>,
    /// The first answers; afterwards nothing goes wrong any more.
    faults: Vec<(usize, Fault)>,
    /// When hints come, and about which node.
    hints: Vec<(usize, usize, bool)>,
}

fn world() -> impl Strategy<Value = World> {
    let edges = proptest::collection::vec((0_usize..14, 0_usize..14, any::<bool>()), 0..30);
    let few = || proptest::collection::vec(0_usize..14, 0..3);
    let faults = proptest::collection::vec((0_usize..8, fault()), 0..80);
    let hints = proptest::collection::vec((0_usize..80, 0_usize..14, any::<bool>()), 0..30);
    (1_usize..14, edges, few(), few(), faults, hints).prop_map(|(nodes, edges, kept, absent, faults, hints)| World {
        nodes,
        edges,
        kept,
        absent,
        faults,
        hints,
    })
}

/// Everything that was asked, in order, and how each object ended.
type History = (Vec<(Node, Step)>, BTreeMap<Node, Settled>);

/// Runs a course to its end and checks the laws on every step.
fn play(world: &World) -> Result<History, TestCaseError> {
    let graph = graph(world.nodes, &world.edges);
    let uid = |node: Node| Uid::new(format!("first-{}", node.index())).unwrap();
    let mut server = Server { objects: BTreeMap::new(), clock: 100, effective: Vec::new() };
    let mut cases = BTreeMap::new();
    let authority = Arc::new(Authority::Caller);
    for node in graph.nodes() {
        if !world.absent.contains(&node.index()) {
            let version = node.index() as u64;
            let stored = Stored { uid: uid(node), version, finalizer: false, terminating: false, keep: false };
            server.objects.insert(node, stored);
        }
        let mut subject = Subject::new(graph.id(node).clone(), maps());
        (subject.uid, subject.keep) = (Some(uid(node)), world.kept.contains(&node.index()));
        cases.insert(node, Case::new(subject, Arc::clone(&authority), None));
    }
    let mut course = Course::new(Arc::clone(&graph), cases);
    let mut history = Vec::new();
    let mut in_flight: Vec<(Node, Step)> = Vec::new();
    let mut faults = world.faults.iter();
    for round in 0.. {
        prop_assert!(round < 20_000, "no end: {course:#?}");
        while let Some((node, step)) = course.next_request() {
            prop_assert!(in_flight.iter().all(|(other, _)| *other != node), "two requests about one object");
            if matches!(step, Step::Delete { .. }) {
                for dependent in graph.dependents(node) {
                    let settled = matches!(course.progress_of(*dependent), Some(Progress::Settled(_)));
                    prop_assert!(settled || graph.group(*dependent) == graph.group(node), "out of order");
                    // What we may have made vanish is gone; what is kept, or came again, is not ours to wait for.
                    let there = server.objects.get(dependent).is_some_and(|o| o.uid == uid(*dependent));
                    let detached = course.progress_of(*dependent) == Some(&Progress::Settled(Settled::Detached));
                    prop_assert!(!there || detached || graph.group(*dependent) == graph.group(node), "still there");
                }
                prop_assert!(!course.case(node).unwrap().is_kept(), "kept and deleted");
            }
            history.push((node, step.clone()));
            in_flight.push((node, step));
        }
        for (_, node, lost) in world.hints.iter().filter(|(at, ..)| *at == round) {
            if let Some(node) = graph.nodes().nth(*node) {
                match server.objects.get(&node).filter(|_| !lost) {
                    Some(object) => drop(course.seen(node, object.live())),
                    None => drop(course.wake(node)),
                }
            }
        }
        let Some(fault) = faults.next() else {
            // Faults are over: holders let go, what is blocked or waiting is asked about again.
            let quiet = in_flight.is_empty();
            server.objects.values_mut().for_each(|object| object.finalizer = false);
            server.objects.retain(|_, object| !object.terminating);
            for (node, step) in std::mem::take(&mut in_flight) {
                let answer = server.carry_out(graph.id(node).name(), node, &step);
                course.answer(node, answer);
            }
            let asked = course.progress().any(|(_, _, progress)| *progress == Progress::Asked);
            if quiet && !asked && !graph.nodes().any(|node| course.wake(node)) {
                break;
            }
            continue;
        };
        let (pick, fault) = *fault;
        if in_flight.is_empty() {
            for node in graph.nodes() {
                course.wake(node);
            }
            continue;
        }
        let (node, step) = in_flight.remove(pick % in_flight.len());
        let answer = server.serve(graph.id(node).name(), node, &step, fault);
        course.answer(node, answer);
    }
    let open: Vec<_> = course.progress().filter(|(_, _, p)| !matches!(p, Progress::Settled(_))).collect();
    prop_assert!(course.is_over(), "{open:#?}");
    let settled: BTreeMap<Node, Settled> = course
        .progress()
        .filter_map(|(node, _, progress)| match progress {
            Progress::Settled(settled) => Some((node, settled.clone())),
            _ => None,
        })
        .collect();
    for (node, how) in &settled {
        let there = server.objects.get(node).is_some_and(|object| object.uid == uid(*node));
        prop_assert!(!matches!(how, Settled::Gone(_)) || !there, "{} counts as gone and is there", graph.id(*node));
        if world.kept.contains(&node.index()) {
            for edge in graph.edges(*node).filter(|e| matches!(e.requirement, Requirement::Required { .. })) {
                prop_assert!(
                    *how == Settled::Detached && settled.get(&edge.to) == Some(&Settled::Detached)
                        || !server.objects.contains_key(&edge.to)
                        || !matches!(settled.get(&edge.to), Some(Settled::Gone(crate::teardown::Proof::DeleteStatus))),
                    "what a kept object requires was deleted"
                );
            }
        }
    }
    for uid in &server.effective {
        prop_assert!(uid.as_str().starts_with("first-"), "an incarnation was deleted that nobody vouched for");
        prop_assert_eq!(server.effective.iter().filter(|other| *other == uid).count(), 1, "deleted twice");
    }
    Ok((history, settled))
}

proptest! {
    #[test]
    fn whatever_is_answered_the_order_holds_and_everything_ends(world in world()) {
        let (history, settled) = play(&world)?;
        let again = play(&world)?;
        prop_assert_eq!(history, again.0, "the same answers lead to the same requests");
        prop_assert_eq!(settled, again.1);
    }
}

fn course(nodes: usize, edges: &[(usize, usize, bool)], kept: &[usize]) -> Course {
    let graph = graph(nodes, edges);
    let cases = graph.nodes().map(|node| {
        let mut subject = Subject::new(graph.id(node).clone(), maps());
        subject.uid = Some(Uid::new("u1").unwrap());
        subject.keep = kept.contains(&node.index());
        (node, Case::new(subject, Authority::Caller, None))
    });
    let cases = cases.collect();
    Course::new(graph, cases)
}

fn there(version: u64, terminating: bool) -> Live {
    let uid = Uid::new("u1").unwrap();
    Stored { uid, version, finalizer: terminating, terminating, keep: false }.live()
}

/// A course of one object whose DELETE was handed out.
fn deleting() -> (Course, Node) {
    let mut course = course(1, &[], &[]);
    let (node, step) = course.next_request().unwrap();
    assert_eq!(step, Step::Get);
    course.answer(node, Event::Live(there(1, false)));
    assert!(matches!(course.next_request(), Some((_, Step::Delete { .. }))));
    (course, node)
}

#[test]
fn an_end_that_a_watch_reports_before_the_answer_came_is_not_missed() {
    let (mut course, node) = deleting();
    assert!(!course.wake(node), "the answer is outstanding");
    course.answer(node, Event::DeleteObject(there(2, true)));
    assert_eq!(course.next_request(), Some((node, Step::Get)), "the answer was older than the hint");
}

#[test]
fn the_echo_of_our_own_delete_asks_nothing() {
    let (mut course, node) = deleting();
    course.answer(node, Event::DeleteObject(there(2, true)));
    assert_eq!(course.seen(node, there(1, false)), Hint::Nothing, "from before the DELETE");
    assert_eq!(course.seen(node, there(2, true)), Hint::Taken);
    assert_eq!(course.next_request(), None);
    assert_eq!(course.progress_of(node), Some(&Progress::Waiting));
}

#[test]
fn a_busy_writer_does_not_set_the_pace_of_a_refused_delete() {
    let (mut course, node) = deleting();
    course.answer(node, failure(422, "Invalid", "admission webhook \"w\" denied the request: no", json!({})));
    assert_eq!(course.seen(node, there(3, false)), Hint::AskSoon);
    assert_eq!(course.next_request(), None);
}

#[test]
fn what_the_caller_holds_stays_held_and_holds_what_it_depends_on() {
    let mut course = course(2, &[(0, 1, true)], &[]);
    let held = course.graph().node(&map(0)).unwrap();
    course.hold(held, Block::new(Reason::Refused));
    assert_eq!(course.next_request(), None);
    assert!(!course.wake(held));
    course.answer(held, Event::Changed);
    assert_eq!((course.next_request(), course.unsettled()), (None, 2));
}

#[test]
fn a_request_whose_answer_was_cancelled_is_asked_again() {
    let (mut course, node) = deleting();
    course.recall();
    assert_eq!(course.next_request(), Some((node, Step::Get)));
}

#[test]
fn what_a_kept_member_of_a_cycle_needs_is_not_deleted_any_more() {
    let mut course = course(2, &[(0, 1, true), (1, 0, true)], &[]);
    let nodes = [course.next_request().unwrap().0, course.next_request().unwrap().0];
    let mut marked = there(1, false);
    marked.markers =
        crate::markers::read(&BTreeMap::new(), &[("helm.sh/resource-policy".into(), "keep".into())].into());
    course.answer(nodes[0], Event::Live(marked));
    assert!(matches!(course.next_request(), Some((node, Step::Detach(_))) if node == nodes[0]));
    // One DELETE waits to be sent when the other object is let go.
    course.answer(nodes[1], Event::Live(there(1, false)));
    course.answer(nodes[0], Event::Detached);
    assert_eq!(course.next_request(), Some((nodes[1], Step::Get)));
}

#[test]
fn keep_spreads_along_required_edges_only() {
    let course = course(4, &[(0, 1, true), (1, 2, true), (0, 3, false)], &[0]);
    let kept: Vec<_> = course.progress().map(|(_, case, _)| case.is_kept()).collect();
    assert_eq!(kept, [true, true, true, false]);
    let two = course.graph().node(&map(2)).unwrap();
    assert_eq!(course.kept_for(two), Some(&map(1)));
}

#[test]
fn what_was_given_up_keeps_what_it_needs_unless_it_is_known_to_be_gone() {
    let given_up = || {
        let graph = graph(2, &[(0, 1, true)]);
        let cases = graph.nodes().map(|node| {
            let mut subject = Subject::new(graph.id(node).clone(), maps());
            if node.index() == 0 {
                subject.state = crate::inventory::EntryState::Abandoned;
            }
            (node, Case::new(subject, Authority::Caller, None))
        });
        let mut course = Course::new(Arc::clone(&graph), cases.collect());
        let (node, step) = course.next_request().unwrap();
        assert_eq!((node.index(), step), (0, Step::Get));
        (course, node)
    };
    let needed = |course: &Course| course.progress().nth(1).map(|(_, case, _)| case.is_kept());

    let (mut seen, node) = given_up();
    seen.answer(node, Event::Live(there(1, false)));
    assert!(matches!(seen.next_request(), Some((_, Step::Unreference(_)))));
    seen.answer(node, Event::Detached);
    assert_eq!(needed(&seen), Some(true));
    // Whether it is there, nobody may know.
    let (mut unseen, node) = given_up();
    unseen.answer(node, failure(403, "Forbidden", "configmaps \"n00\" is forbidden", json!({})));
    assert_eq!((unseen.progress_of(node), needed(&unseen)), (Some(&Progress::Settled(Settled::Abandoned)), Some(true)));
    let (mut gone, node) = given_up();
    gone.answer(node, Server::not_found("n00"));
    assert_eq!((gone.progress_of(node), needed(&gone)), (Some(&Progress::Settled(Settled::Abandoned)), Some(false)));
}
