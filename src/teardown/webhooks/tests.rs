//! A course whose objects a dead webhook keeps.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Status;

use super::*;
use crate::{
    answer::Refusal,
    graph::GraphBuilder,
    object::{ResourceKind, Scope, Uid},
    teardown::{Authority, Case, Course, Event, Live, Progress, Reason, Settled, Step, Subject},
};

const WEBHOOK: &str = "check.mesh.example.com";

fn id(name: &str) -> ObjectId {
    match name.strip_prefix("checks") {
        Some(_) => ObjectId::new("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", None, name).unwrap(),
        None => ObjectId::new("", "ConfigMap", Some("a"), name).unwrap(),
    }
}

/// A course over objects, with edges of which those marked are required.
fn course(names: &[&str], edges: &[(&str, &str, bool)]) -> Course {
    let mut builder = GraphBuilder::new();
    for name in names {
        builder.add(id(name)).unwrap();
    }
    for (from, to, required) in edges {
        let requirement = match required {
            true => Requirement::Required { declared_by: "api".into() },
            false => Requirement::Preferred { rule: "covered-by-webhook".into(), rank: 300, evidence: "seen".into() },
        };
        builder.depend_on_id(builder.slot(&id(from)).unwrap(), &id(to), requirement);
    }
    let graph = Arc::new(builder.build().unwrap());
    let cases = graph.nodes().map(|node| {
        let id = graph.id(node).clone();
        let scope = if id.namespace().is_some() { Scope::Namespaced } else { Scope::Cluster };
        let resource = ResourceKind::new(id.group(), "v1", id.kind(), &id.kind().to_lowercase(), scope);
        let mut subject = Subject::new(id, resource);
        subject.uid = Some(Uid::new("u").unwrap());
        (node, Case::new(subject, Authority::Caller, None))
    });
    let cases = cases.collect();
    Course::new(graph, cases)
}

fn live() -> Event {
    let meta = ObjectMeta { uid: Some("u".into()), resource_version: Some("1".into()), ..ObjectMeta::default() };
    Event::Live(Live::of(&meta, None).unwrap())
}

fn unavailable(webhook: &str) -> Event {
    let message =
        format!("Internal error occurred: failed calling webhook \"{webhook}\": failed to call webhook: no endpoints");
    let status = Status { code: 500, ..Status::failure(&message, "InternalError") };
    Event::Refused(Refusal::of(&kube_client::Error::Api(Box::new(status))))
}

fn gone() -> Event {
    Event::DeleteStatus(Some(Uid::new("u").unwrap()))
}

/// Answers requests until there are none: DELETEs of `refused` by a dead webhook, until its configuration is gone. Returns
/// what was asked, in order.
fn answer_all(course: &mut Course, refused: &[&str], dead: &mut bool, names: Option<&[&str]>) -> Vec<String> {
    let mut asked = Vec::new();
    while let Some((node, step)) = course.next_request() {
        let name = course.graph().id(node).name().to_owned();
        let event = match step {
            Step::Get => live(),
            Step::ReadWebhooks => {
                asked.push(format!("read {name}"));
                Event::Webhooks(names.map(|names| names.iter().map(|n| (*n).to_owned()).collect()))
            }
            Step::Delete { .. } => {
                asked.push(format!("delete {name}"));
                match *dead && refused.contains(&name.as_str()) {
                    true => unavailable(WEBHOOK),
                    false => {
                        *dead &= !name.starts_with("checks");
                        gone()
                    }
                }
            }
            other => panic!("{other:?}"),
        };
        course.answer(node, event);
    }
    asked
}

fn wake_all(course: &mut Course) {
    for node in course.graph().nodes() {
        course.wake(node);
    }
}

#[test]
fn c48_the_configuration_of_a_dead_webhook_goes_first() {
    // "later" waits for "mesh" itself, and would hold the configuration as well.
    let edges =
        [("mesh", "checks", false), ("later", "checks", false), ("mesh", "later", true), ("checks", "hook", false)];
    let mut course = course(&["mesh", "later", "checks", "hook"], &edges);
    let mut dead = true;
    assert_eq!(answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK])), ["delete mesh"], "it may be a blip");
    wake_all(&mut course);
    assert_eq!(answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK])), ["delete mesh"]);
    wake_all(&mut course);
    let asked = answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK]));
    assert_eq!(asked[..3], ["delete mesh", "read checks", "delete checks"]);
    assert!(course.is_over(), "{asked:?}");
    let position = |what: &str| asked.iter().rposition(|a| a == what).unwrap();
    assert!(position("delete mesh") < position("delete later"), "the required edge held: {asked:?}");
    assert!(position("delete checks") < position("delete hook"), "other preferred edges held: {asked:?}");
    let ended: Vec<_> = course.ended().iter().map(ToString::to_string).collect();
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended[0].contains(WEBHOOK) && ended[0].contains("rule covered-by-webhook: seen"), "{ended:?}");
}

#[test]
fn a_required_edge_to_the_configuration_holds_all_the_same() {
    let edges = [("mesh", "checks", false), ("other", "checks", true), ("mesh", "other", true)];
    let mut course = course(&["mesh", "other", "checks"], &edges);
    let mut dead = true;
    for _ in 0..5 {
        answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK]));
        wake_all(&mut course);
    }
    let state = |course: &Course, name: &str| course.progress_of(course.graph().node(&id(name)).unwrap()).cloned();
    assert_eq!(state(&course, "checks"), Some(Progress::Idle));
    let mesh = course.graph().node(&id("mesh")).unwrap();
    let other = course.graph().node(&id("other")).unwrap();
    assert!(course.waits_for(course.graph().node(&id("checks")).unwrap()).eq([other]));
    assert!(matches!(course.progress_of(mesh), Some(Progress::Asked | Progress::Blocked(_))));
    answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK]));
    let Some(Progress::Blocked(block)) = course.progress_of(mesh) else { panic!() };
    assert_eq!(block.reason, Reason::Refused);
    assert!(block.words.contains(WEBHOOK), "{}", block.words);
}

#[test]
fn another_webhook_or_an_unreadable_configuration_ends_nothing() {
    for names in [None, Some(&["other.example.com"][..])] {
        let mut course = course(&["mesh", "checks"], &[("mesh", "checks", false)]);
        let mut dead = true;
        let mut reads = 0;
        for _ in 0..6 {
            let asked = answer_all(&mut course, &["mesh"], &mut dead, names);
            reads += asked.iter().filter(|a| *a == "read checks").count();
            wake_all(&mut course);
        }
        assert!(course.ended().is_empty());
        assert_eq!(reads, if names.is_some() { 1 } else { 4 }, "what is known is not asked again");
        // It was no blip of ours to judge: when the webhook is back, the order is as it was.
        dead = false;
        let asked = answer_all(&mut course, &[], &mut dead, names);
        assert_eq!(asked, ["delete mesh", "delete checks"]);
        assert!(course.is_over());
    }
}

#[test]
fn a_lost_question_is_asked_again_and_a_settled_object_holds_nothing() {
    let mut course = course(&["mesh", "checks"], &[("mesh", "checks", false)]);
    let mut dead = true;
    for _ in 0..2 {
        answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK]));
        wake_all(&mut course);
    }
    let mesh = course.graph().node(&id("mesh")).unwrap();
    while let Some((node, step)) = course.next_request() {
        match step {
            Step::Get => course.answer(node, live()),
            Step::Delete { .. } => course.answer(node, unavailable(WEBHOOK)),
            // Whoever asked is gone.
            Step::ReadWebhooks => break,
            other => panic!("{other:?}"),
        }
    }
    course.recall();
    course.wake(mesh);
    let asked = answer_all(&mut course, &["mesh"], &mut dead, Some(&[WEBHOOK]));
    assert_eq!(asked[..3], ["delete mesh", "read checks", "delete checks"]);
    assert!(matches!(course.progress_of(mesh), Some(Progress::Settled(Settled::Gone(_)))));
}
