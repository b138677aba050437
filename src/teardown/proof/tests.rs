//! What proves an object gone, what does not, and what each refusal means: one test a row.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use super::*;
use crate::{
    manager::Manager,
    object::{ParentRef, Scope},
    ownership::BackPointer,
};

fn uid(text: &str) -> Uid {
    Uid::new(text).unwrap()
}

fn map() -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("a"), "x").unwrap()
}

fn maps() -> ResourceKind {
    ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
}

fn manager() -> Manager {
    Manager::new("tests.example.com").unwrap()
}

fn parent() -> ParentRef {
    let kind = ResourceKind::new("example.com", "v1", "Parent", "parents", Scope::Namespaced);
    ParentRef::new(ObjectId::new("example.com", "Parent", Some("a"), "p").unwrap(), uid("parent"), &kind)
}

/// What is there under the name of `id`.
struct There<'a> {
    id: &'a ObjectId,
    meta: ObjectMeta,
}

impl<'a> There<'a> {
    fn new(id: &'a ObjectId, incarnation: &str) -> Self {
        let meta =
            ObjectMeta { uid: Some(incarnation.into()), resource_version: Some("7".into()), ..ObjectMeta::default() };
        Self { id, meta }
    }

    fn ours(mut self) -> Self {
        self.meta.labels.get_or_insert_default().insert(manager().parent_label(), "parent".into());
        let pointer = BackPointer::new(&parent(), self.id).encode();
        self.meta.annotations.get_or_insert_default().insert(manager().back_pointer_annotation(), pointer);
        self
    }

    fn version(mut self, version: &str) -> Self {
        self.meta.resource_version = Some(version.into());
        self
    }

    fn terminating(mut self, finalizers: &[&str]) -> Self {
        self.meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        self.meta.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
        self
    }

    fn marked_keep(mut self) -> Self {
        self.meta.annotations.get_or_insert_default().insert("helm.sh/resource-policy".into(), "keep".into());
        self
    }

    fn live(self) -> Live {
        Live::of(&self.meta, Some(&manager())).unwrap()
    }

    fn seen(self) -> Event {
        Event::Live(self.live())
    }
}

/// An entry of an inventory, recorded as incarnation `u1`.
fn recorded() -> Case {
    of(Subject { uid: Some(uid("u1")), state: EntryState::Recorded, ..Subject::new(map(), maps()) })
}

fn of(subject: Subject) -> Case {
    Case::new(subject, Authority::Marks { manager: manager(), parent: parent() }, None)
}

/// An object that the caller vouches for as incarnation `u1`.
fn vouched() -> Case {
    Case::new(Subject { uid: Some(uid("u1")), ..Subject::new(map(), maps()) }, Authority::Caller, None)
}

/// A case whose DELETE was handed out.
fn deleting() -> Case {
    let mut case = recorded();
    assert_eq!(case.start(), Step::Get);
    assert_eq!(case.on(There::new(&map(), "u1").ours().seen()), delete("7"));
    case
}

fn delete(version: &str) -> Step {
    Step::Delete { uid: uid("u1"), resource_version: Some(version.into()) }
}

fn gone(proof: Proof) -> Step {
    Step::Settle(Settled::Gone(proof))
}

fn refusal(status: Value) -> Event {
    let status: kube_core::Status = serde_json::from_value(status).unwrap();
    Event::Refused(Refusal::about(&map(), &kube_client::Error::Api(Box::new(status))))
}

fn failure(code: u16, reason: &str, message: &str) -> Event {
    refusal(json!({"status": "Failure", "code": code, "reason": reason, "message": message}))
}

fn not_found(kind: &str, group: &str, name: &str) -> Event {
    refusal(json!({
        "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found",
        "details": {"kind": kind, "group": group, "name": name},
    }))
}

fn no_route() -> Event {
    refusal(json!({"status": "Failure", "code": 404, "reason": "Failed to parse error data",
                   "message": "404 page not found"}))
}

fn conflict(message: &str) -> Event {
    failure(409, "Conflict", message)
}

fn blocked(step: &Step) -> &Block {
    match step {
        Step::Block(block) => block,
        other => panic!("not blocked: {other:?}"),
    }
}

// ---- what proves that an object is gone ----------------------------------------------------------------------------

#[test]
fn a_a_delete_status_with_our_uid() {
    assert_eq!(deleting().on(Event::DeleteStatus(Some(uid("u1")))), gone(Proof::DeleteStatus));
}

#[test]
fn a_delete_status_with_another_uid_or_none_proves_nothing() {
    for other in [Some(uid("u2")), None] {
        assert_eq!(deleting().on(Event::DeleteStatus(other)), Step::Get);
    }
}

#[test]
fn b_the_deleted_object_with_nothing_left_to_keep_it() {
    let answer = There::new(&map(), "u1").ours().version("8").live();
    assert_eq!(deleting().on(Event::DeleteObject(answer)), gone(Proof::DeletedObject));
}

#[test]
fn a_deleted_object_that_lives_on_is_waited_for() {
    let answer = There::new(&map(), "u1").ours().terminating(&["example.com/hold"]).live();
    assert_eq!(deleting().on(Event::DeleteObject(answer)), Step::Wait);
    // In its grace period: terminating, without finalizers.
    let answer = There::new(&map(), "u1").ours().terminating(&[]).live();
    assert_eq!(deleting().on(Event::DeleteObject(answer)), Step::Wait);
}

#[test]
fn a_deleted_object_with_finalizers_that_does_not_say_terminating_is_asked_for() {
    let id = map();
    let mut there = There::new(&id, "u1").ours();
    there.meta.finalizers = Some(vec!["example.com/hold".into()]);
    assert_eq!(deleting().on(Event::DeleteObject(there.live())), Step::Get);
}

#[test]
fn a_deleted_object_of_another_incarnation_proves_nothing() {
    let answer = There::new(&map(), "u2").ours().live();
    assert_eq!(deleting().on(Event::DeleteObject(answer)), Step::Get);
}

#[test]
fn pods_and_namespaces_live_on_after_their_delete_was_answered() {
    for (kind, plural, namespace) in [("Pod", "pods", Some("a")), ("Namespace", "namespaces", None)] {
        let id = ObjectId::new("", kind, namespace, "x").unwrap();
        let resource = ResourceKind::new("", "v1", kind, plural, id.scope());
        let mut case = of(Subject { uid: Some(uid("u1")), ..Subject::new(id.clone(), resource) });
        let mut step = case.on(There::new(&id, "u1").ours().seen());
        if kind == "Namespace" {
            assert_eq!(step, Step::Inspect, "what is in it comes first");
            step = case.on(Event::Inside(Inside::default()));
        }
        assert_eq!(step, delete("7"));
        assert_eq!(case.on(Event::DeleteObject(There::new(&id, "u1").ours().live())), Step::Get, "{kind}");
    }
}

#[test]
fn c_not_found_that_names_the_object() {
    let mut case = recorded();
    assert_eq!(case.start(), Step::Get);
    assert_eq!(case.on(not_found("configmaps", "", "x")), gone(Proof::NotFound));
    assert_eq!(deleting().on(not_found("configmaps", "", "x")), gone(Proof::NotFound));
}

#[test]
fn not_found_that_names_something_else_proves_nothing() {
    for (kind, group, name) in [("namespaces", "", "a"), ("configmaps", "", "y"), ("configmaps", "example.com", "x")] {
        let step = deleting().on(not_found(kind, group, name));
        assert_eq!(blocked(&step).reason, Reason::Unknown, "{kind} {group} {name}");
    }
}

#[test]
fn d_another_incarnation_without_our_mark() {
    for mut case in [recorded(), vouched()] {
        assert_eq!(case.on(There::new(&map(), "u2").seen()), gone(Proof::Replaced { by: uid("u2") }));
    }
}

#[test]
fn d_a_foreign_incarnation_may_carry_any_keep_mark() {
    for mut case in [recorded(), vouched()] {
        let step = case.on(There::new(&map(), "u2").marked_keep().seen());
        assert_eq!(step, gone(Proof::Replaced { by: uid("u2") }));
        assert!(!case.is_kept(), "what is not ours asks nothing of us");
    }
}

#[test]
fn another_incarnation_with_our_mark_is_present_and_recorded() {
    let mut case = recorded();
    let step = case.on(There::new(&map(), "u2").ours().seen());
    assert_eq!(blocked(&step).reason, Reason::Recreated { times: 1 });
    assert!(case.is_unrecorded());
    assert!(matches!(case.on(Event::Changed), Step::Get));
    assert_eq!(case.on(There::new(&map(), "u2").ours().seen()), step, "it is not deleted before it is on record");
    assert_eq!(case.on(Event::Recorded), Step::Get);
    let step = case.on(There::new(&map(), "u2").ours().seen());
    assert_eq!(step, Step::Delete { uid: uid("u2"), resource_version: Some("7".into()) });
    assert_eq!((case.subject().uid.clone(), case.subject().recreations), (Some(uid("u2")), 1));
}

#[test]
fn from_the_third_recreation_on_it_is_held_and_reported() {
    let mut case = recorded();
    for n in 2..4 {
        let there = There::new(&map(), &format!("u{n}")).ours().live();
        let step = case.on(Event::Live(there.clone()));
        assert_eq!(blocked(&step).reason, Reason::Recreated { times: n - 1 });
        assert_eq!(case.on(Event::Recorded), Step::Get);
        let step = case.on(Event::Live(there));
        assert!(matches!(step, Step::Delete { .. }), "{step:?}");
    }
    let there = There::new(&map(), "u4").ours().live();
    let step = case.on(Event::Live(there.clone()));
    assert_eq!(blocked(&step).reason, Reason::Recreated { times: 3 });
    assert_eq!(case.on(Event::Recorded), Step::Get);
    assert_eq!(case.on(Event::Live(there)), step, "held, also when that is on record");
}

#[test]
fn a_caller_vouches_for_one_incarnation_only_whatever_its_marks() {
    let step = vouched().on(There::new(&map(), "u2").ours().seen());
    assert_eq!(step, gone(Proof::Replaced { by: uid("u2") }));
}

#[test]
fn e_the_definition_of_the_kind_read_by_name_is_not_found() {
    let mut case = of(Subject { defined_by_crd: true, uid: Some(uid("u1")), ..Subject::new(map(), maps()) });
    assert_eq!(case.on(no_route()), Step::Resolve);
    assert_eq!(case.on(Event::Resolved(None)), Step::ReadDefinition);
    assert_eq!(case.on(Event::Definition { exists: false }), gone(Proof::KindGone));
}

#[test]
fn a_definition_that_exists_but_is_not_served_proves_nothing() {
    let mut case = of(Subject { defined_by_crd: true, uid: Some(uid("u1")), ..Subject::new(map(), maps()) });
    let _ = case.on(no_route());
    let _ = case.on(Event::Resolved(None));
    assert_eq!(blocked(&case.on(Event::Definition { exists: true })).reason, Reason::Unknown);
}

#[test]
fn a_kind_without_definition_that_discovery_lacks_is_unknown() {
    let mut case = recorded();
    assert_eq!(case.on(no_route()), Step::Resolve);
    assert_eq!(blocked(&case.on(Event::Resolved(None))).reason, Reason::Unknown);
    assert_eq!(blocked(&case.on(Event::Definition { exists: false })).reason, Reason::Unknown, "nobody asked");
}

#[test]
fn a_plain_404_means_resolve_the_kind_again() {
    let mut case = deleting();
    assert_eq!(case.on(no_route()), Step::Resolve);
    let v2 = ResourceKind { version: "v2".into(), ..maps() };
    assert_eq!(case.on(Event::Resolved(Some(v2.clone()))), Step::Get);
    assert_eq!(case.subject().resource, v2);
}

#[test]
fn a_version_that_discovery_serves_and_requests_do_not_is_unknown_for_now() {
    let mut case = deleting();
    assert_eq!(case.on(no_route()), Step::Resolve);
    assert_eq!(blocked(&case.on(Event::Resolved(Some(maps())))).reason, Reason::Unknown);
    assert_eq!(case.on(Event::Changed), Step::Get);
}

#[test]
fn a_deleted_event_or_a_gap_in_a_list_leads_to_one_question() {
    let mut case = deleting();
    let _ = case.on(Event::DeleteObject(There::new(&map(), "u1").ours().terminating(&["example.com/hold"]).live()));
    assert_eq!(case.on(Event::Changed), Step::Get);
    assert_eq!(case.on(There::new(&map(), "u1").ours().terminating(&["example.com/hold"]).seen()), Step::Wait);
    assert_eq!(case.on(Event::Changed), Step::Get);
    assert_eq!(case.on(not_found("configmaps", "", "x")), gone(Proof::NotFound));
}

#[test]
fn nothing_learned_is_unknown() {
    let step = deleting().on(Event::Unknown("no answer within 10s".into()));
    assert_eq!(blocked(&step), &Block::said(Reason::Unknown, "no answer within 10s"));
}

#[test]
fn a_list_that_shows_another_incarnation_than_the_record_is_no_evidence() {
    let live = There::new(&map(), "u0").ours().live();
    let subject = Subject { uid: Some(uid("u1")), ..Subject::new(map(), maps()) };
    let mut case = Case::new(subject, Authority::Marks { manager: manager(), parent: parent() }, Some(live));
    assert_eq!(case.start(), Step::Get);
    assert_eq!(case.on(There::new(&map(), "u1").ours().seen()), delete("7"));
    assert_eq!(case.subject().recreations, 0);
}

// ---- whose it is ---------------------------------------------------------------------------------------------------

#[test]
fn the_recorded_incarnation_without_our_mark_is_disowned() {
    assert_eq!(recorded().on(There::new(&map(), "u1").seen()), Step::Block(Block::new(Reason::Disowned)));
}

#[test]
fn a_mark_that_was_copied_from_another_object_is_no_claim() {
    let other = ObjectId::new("", "ConfigMap", Some("a"), "other").unwrap();
    assert_eq!(
        recorded().on(There::new(&other, "u1").ours().seen()),
        Step::Block(Block::said(Reason::Disowned, "not ours (it carries a copy of the marks of ConfigMap a/other)",))
    );
}

#[test]
fn an_intended_object_without_our_mark_is_unproven() {
    let step = of(Subject::new(map(), maps())).on(There::new(&map(), "u9").seen());
    assert_eq!(step, Step::Block(Block::new(Reason::Unproven)));
}

#[test]
fn an_intended_object_with_our_mark_is_ours_and_no_recreation() {
    let mut case = of(Subject::new(map(), maps()));
    let step = case.on(There::new(&map(), "u9").ours().seen());
    assert_eq!(step, Step::Delete { uid: uid("u9"), resource_version: Some("7".into()) });
    assert_eq!(case.subject().recreations, 0);
}

#[test]
fn a_terminating_object_is_never_deleted_again() {
    for there in [There::new(&map(), "u1").ours(), There::new(&map(), "u1")] {
        assert_eq!(recorded().on(there.terminating(&["example.com/hold"]).seen()), Step::Wait);
    }
}

#[test]
fn abandoned_loses_our_references_and_nothing_else_and_never_waits_for_an_answer_that_cannot_come() {
    let abandoned = || of(Subject { state: EntryState::Abandoned, ..Subject::new(map(), maps()) });
    let done = Step::Settle(Settled::Abandoned);
    for there in [There::new(&map(), "u1"), There::new(&map(), "u1").ours()] {
        let mut case = abandoned();
        assert_eq!(case.start(), Step::Get);
        let live = there.live();
        assert_eq!(case.on(Event::Live(live.clone())), Step::Unreference(live));
        assert_eq!(case.on(Event::Detached), done);
    }
    assert_eq!(abandoned().on(not_found("configmaps", "", "x")), done);
}

#[test]
fn kept_objects_are_detached_and_never_deleted() {
    let mut marked = recorded();
    let there = There::new(&map(), "u1").ours().marked_keep().live();
    assert_eq!(marked.on(Event::Live(there.clone())), Step::Detach(there));
    assert!(marked.is_kept());
    assert_eq!(marked.on(Event::Detached), Step::Settle(Settled::Detached));

    let mut decided = of(Subject { uid: Some(uid("u1")), keep: true, ..Subject::new(map(), maps()) });
    let there = There::new(&map(), "u1").ours().live();
    assert_eq!(decided.on(Event::Live(there.clone())), Step::Detach(there));
    // The marks went off before that was recorded.
    let there = There::new(&map(), "u1").live();
    assert_eq!(decided.on(Event::Live(there.clone())), Step::Unreference(there));
    assert_eq!(decided.on(Event::Detached), Step::Settle(Settled::Detached));
}

#[test]
fn a_proxy_is_let_go_before_it_is_deleted() {
    let guard = manager().proxy_finalizer();
    let mut case = of(Subject { uid: Some(uid("u1")), role: Role::Proxy, ..Subject::new(map(), maps()) });
    let id = map();
    let mut there = There::new(&id, "u1").ours();
    there.meta.finalizers = Some(vec![guard]);
    let live = there.live();
    assert_eq!(case.on(Event::Live(live.clone())), Step::Unguard(live));
    assert_eq!(case.on(There::new(&map(), "u1").ours().version("8").seen()), delete("8"));
}

// ---- reading a refusal ---------------------------------------------------------------------------------------------

const UID: &str = "Operation cannot be fulfilled on ConfigMap \"x\": the UID in the precondition (u1) does not match \
                   the UID in record (u2). The object might have been deleted and then recreated";
const VERSION: &str = "Operation cannot be fulfilled on ConfigMap \"x\": the ResourceVersion in the precondition (7) \
                       does not match the ResourceVersion in record (8). The object might have been modified";

#[test]
fn a_409_by_uid_is_read_and_judged_again() {
    let mut case = deleting();
    assert_eq!(case.on(conflict(UID)), Step::Get);
    assert_eq!(case.on(There::new(&map(), "u2").seen()), gone(Proof::Replaced { by: uid("u2") }));
}

#[test]
fn a_409_by_version_is_read_and_judged_again() {
    let mut case = deleting();
    assert_eq!(case.on(conflict(VERSION)), Step::Get);
    assert_eq!(case.on(There::new(&map(), "u1").ours().version("8").seen()), delete("8"));
    // The writer took our mark off: what was judged before does not count.
    assert_eq!(case.on(conflict(VERSION)), Step::Get);
    assert_eq!(blocked(&case.on(There::new(&map(), "u1").version("9").seen())).reason, Reason::Disowned);
}

#[test]
fn a_busy_writer_does_not_starve_the_delete() {
    let mut case = deleting();
    let mut versions = Vec::new();
    for round in 0..4 {
        assert_eq!(case.on(conflict(VERSION)), Step::Get);
        match case.on(There::new(&map(), "u1").ours().version(&round.to_string()).seen()) {
            Step::Delete { uid: to, resource_version } => {
                assert_eq!(to, uid("u1"));
                versions.push(resource_version.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(versions, [true, true, false, false]);
}

#[test]
fn conflicts_without_end_are_given_a_rest() {
    let mut case = deleting();
    let mut questions = 0;
    let reason = loop {
        match case.on(conflict(VERSION)) {
            Step::Get => questions += 1,
            step => break blocked(&step).reason.clone(),
        }
        let _ = case.on(There::new(&map(), "u1").ours().seen());
    };
    assert_eq!((questions, reason), (8, Reason::Unknown));
    assert_eq!(case.on(Event::Changed), Step::Get, "and begin anew");
}

#[test]
fn a_409_by_admission_is_a_refusal() {
    let words =
        "admission webhook \"nousages.apiextensions.crossplane.io\" denied the request: This resource is in-use";
    let step = deleting().on(conflict(words));
    assert_eq!(blocked(&step).reason, Reason::Refused);
    assert!(blocked(&step).words.contains(words), "{step:?}");
}

#[test]
fn a_409_of_unknown_origin_is_asked_about_and_then_a_refusal() {
    let mut case = deleting();
    for _ in 0..8 {
        assert_eq!(case.on(conflict("no")), Step::Get);
        let _ = case.on(There::new(&map(), "u1").ours().seen());
    }
    assert_eq!(blocked(&case.on(conflict("no"))).reason, Reason::Refused);
}

#[test]
fn each_other_refusal_has_its_own_outcome() {
    let policy = "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
    let webhook = "Internal error occurred: failed calling webhook \"w.example.com\": no endpoints";
    let rbac = "configmaps \"x\" is forbidden: User \"u\" cannot delete resource \"configmaps\" in API group \"\"";
    for (event, reason) in [
        (failure(422, "Invalid", policy), Reason::Refused),
        (
            failure(403, "Forbidden", "namespaces \"default\" is forbidden: this namespace may not be deleted"),
            Reason::Refused,
        ),
        (failure(500, "InternalError", webhook), Reason::Refused),
        (failure(403, "Forbidden", rbac), Reason::Forbidden),
        (failure(401, "Unauthorized", "Unauthorized"), Reason::Forbidden),
        (failure(500, "InternalError", "etcdserver: no leader"), Reason::Unknown),
        (failure(503, "ServiceUnavailable", "later"), Reason::Unknown),
        (failure(504, "Timeout", "timed out"), Reason::Unknown),
        (failure(429, "TooManyRequests", "later"), Reason::Throttled { after: Duration::from_secs(1) }),
        (
            refusal(json!({"status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "later",
                           "details": {"retryAfterSeconds": 9}})),
            Reason::Throttled { after: Duration::from_secs(9) },
        ),
        (
            refusal(json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "being terminated",
                           "details": {"causes": [{"reason": "NamespaceTerminating", "message": "", "field": ""}]}})),
            Reason::Unknown,
        ),
    ] {
        let words = format!("{event:?}");
        let mut case = deleting();
        let step = case.on(event);
        assert_eq!(blocked(&step).reason, reason, "{words}");
        assert!(!blocked(&step).words.is_empty(), "{words}");
        assert_eq!(case.on(Event::Changed), Step::Get, "whatever was refused is asked about later");
    }
}

#[test]
fn of_a_secret_only_code_and_reason_are_quoted() {
    let id = ObjectId::new("", "Secret", Some("a"), "x").unwrap();
    let resource = ResourceKind::new("", "v1", "Secret", "secrets", Scope::Namespaced);
    let mut case = of(Subject { uid: Some(uid("u1")), ..Subject::new(id, resource) });
    let step =
        case.on(failure(422, "Invalid", "admission webhook \"w\" denied the request: value \"hunter2\" is weak"));
    assert_eq!(blocked(&step).words, "422 Invalid");
}
