//! Each demand of the checker is met by a lawful story, and broken by that story told slightly otherwise.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    checker::{Law, Parent, check},
    history::{Entry, Event, History, Id, Record, Request, Verb, What},
};

const MANAGER: &str = "m.example.com";

fn map(name: &str) -> Id {
    Id::new("", "configmaps", Some("b"), name)
}

fn kind_of(id: &Id) -> &'static str {
    match id.plural.as_str() {
        "configmaps" => "ConfigMap",
        "namespaces" => "Namespace",
        "secrets" => "Secret",
        "widgets" => "Widget",
        "fooowners" => "FooOwner",
        "customresourcedefinitions" => "CustomResourceDefinition",
        _ => "Foo",
    }
}

fn parent() -> Parent {
    Parent {
        manager: MANAGER.into(),
        id: Id::new("x.io", "foos", Some("a"), "foo"),
        kind: "Foo".into(),
        uid: "p".into(),
        edges: vec![(map("top"), map("base"))],
        defined: BTreeSet::from([("x.io".into(), "widgets".into())]),
        secrets: vec!["hush".into()],
    }
}

/// An object as the server gives it; `marked` with the back-pointer of the parent and itself.
fn object(id: &Id, uid: &str, version: &str, marked: bool) -> Value {
    let pointer = json!({
        "v": 1, "parent": {"group": "x.io", "kind": "Foo", "namespace": "a", "name": "foo", "uid": "p"},
        "self": {"group": id.group, "kind": kind_of(id), "namespace": id.namespace, "name": id.name},
    });
    let mut object = json!({
        "kind": kind_of(id), "apiVersion": "v1",
        "metadata": {"name": id.name, "namespace": id.namespace, "uid": uid, "resourceVersion": version},
    });
    if marked {
        object["metadata"]["annotations"] = json!({format!("{MANAGER}/back-pointer"): pointer.to_string()});
    }
    object
}

fn going(mut object: Value, finalizers: &[&str]) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    object["metadata"]["finalizers"] = json!(finalizers);
    object
}

fn success(uid: &str) -> Value {
    json!({"kind": "Status", "status": "Success", "details": {"uid": uid}})
}

fn not_found(id: &Id) -> Value {
    let details = json!({"name": id.name, "kind": id.plural, "group": id.group});
    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "details": details})
}

fn refusal(reason: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "reason": reason})
}

#[derive(Default)]
struct Story {
    events: Vec<Event>,
    operator: usize,
}

impl Story {
    fn tell(&mut self, what: What) -> Duration {
        let at = Duration::from_millis(self.events.len() as u64 + 1);
        self.events.push(Event { at, operator: self.operator, what });
        at
    }

    fn made(&mut self, verb: Verb, id: &Id, body: Value) -> (Arc<Request>, Duration) {
        let apply = body.get("apply").is_some();
        let request = Arc::new(Request {
            verb,
            group: id.group.clone(),
            version: "v1".into(),
            plural: id.plural.clone(),
            namespace: id.namespace.clone(),
            name: Some(id.name.clone()),
            subresource: None,
            content_type: if apply { "application/apply-patch+yaml".into() } else { String::new() },
            dry_run: false,
            body: Some(body).filter(|b| !b.is_null()),
            text: format!("{verb:?} {id}"),
        });
        let at = self.tell(What::Made(Arc::clone(&request)));
        (request, at)
    }

    fn call(&mut self, verb: Verb, id: &Id, body: Value, code: u16, answer: Value) -> &mut Self {
        let (request, made) = self.made(verb, id, body);
        if !matches!(verb, Verb::Get | Verb::List) && code < 300 {
            self.tell(What::Accepted(Arc::clone(&request), answer.clone()));
        }
        self.tell(What::Told { request, code, answer, made });
        self
    }

    fn get(&mut self, id: &Id, answer: Value) -> &mut Self {
        let code = if answer["kind"] == "Status" { 404 } else { 200 };
        self.call(Verb::Get, id, Value::Null, code, answer)
    }

    fn post(&mut self, id: &Id, uid: &str, version: &str) -> &mut Self {
        self.call(Verb::Create, id, json!({"metadata": {"name": id.name}}), 201, object(id, uid, version, true))
    }

    fn delete(&mut self, id: &Id, uid: &str, version: &str, code: u16, answer: Value) -> &mut Self {
        let body = json!({"preconditions": {"uid": uid, "resourceVersion": version}});
        self.call(Verb::Delete, id, body, code, answer)
    }

    fn store(&mut self, entries: &[(Id, Option<&str>)]) -> &mut Self {
        self.store_text(entries, "")
    }

    fn store_text(&mut self, entries: &[(Id, Option<&str>)], text: &str) -> &mut Self {
        self.tell(What::Storing(Some(record(entries, text))));
        self.tell(What::Stored);
        self
    }

    fn remove(&mut self) -> &mut Self {
        self.tell(What::Storing(None));
        self.tell(What::Stored);
        self
    }

    fn load(&mut self, entries: &[(Id, Option<&str>)]) -> &mut Self {
        let began = Duration::from_millis(self.events.len() as u64);
        self.tell(What::Loaded { record: Some(record(entries, "")), began });
        self
    }

    fn parent_read(&mut self) -> &mut Self {
        let mut live = object(&parent().id, "p", "1", false);
        live["metadata"]["finalizers"] = json!([format!("{MANAGER}/custody"), "other.io/x"]);
        self.get(&parent().id, live)
    }

    fn parent_going(&mut self) -> &mut Self {
        let live = going(object(&parent().id, "p", "2", false), &[&format!("{MANAGER}/custody"), "other.io/x"]);
        self.get(&parent().id, live)
    }

    fn release_parent(&mut self) -> &mut Self {
        let list = json!([format!("{MANAGER}/custody"), "other.io/x"]);
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": list},
            {"op": "replace", "path": "/metadata/finalizers", "value": ["other.io/x"]},
        ]);
        let answer = object(&parent().id, "p", "9", false);
        self.call(Verb::Patch, &parent().id, patch, 200, answer)
    }

    /// `top` and `base` on record and created.
    fn life() -> Self {
        let mut story = Self::default();
        story.tell(What::Pass);
        story.store(&[(map("base"), None), (map("top"), None)]).parent_read();
        story.post(&map("base"), "u-base", "10").post(&map("top"), "u-top", "11");
        story.store(&[(map("base"), Some("u-base")), (map("top"), Some("u-top"))]);
        story
    }

    fn broken(&self) -> Vec<Law> {
        let mut history = History::default();
        history.extend(self.events.iter().cloned());
        check(&parent(), &history).into_iter().map(|violation| violation.law).collect()
    }
}

fn record(entries: &[(Id, Option<&str>)], text: &str) -> Record {
    let entries = entries.iter().map(|(id, uid)| {
        let entry = Entry { kind: kind_of(id).into(), uid: uid.map(Into::into), ..Entry::default() };
        (id.clone(), entry)
    });
    Record { entries: entries.collect(), text: text.into() }
}

/// Tells a story to its end.
macro_rules! story {
    ($story:expr, |$s:ident| $end:expr) => {{
        let mut $s = $story;
        $end;
        $s.broken()
    }};
}

#[test]
fn a_lawful_life_breaks_nothing() {
    let broken = story!(Story::life(), |s| s
        .parent_going()
        .delete(&map("top"), "u-top", "11", 200, success("u-top"))
        .delete(&map("base"), "u-base", "10", 409, refusal("Conflict"))
        .get(&map("base"), object(&map("base"), "u-base", "12", true))
        .delete(&map("base"), "u-base", "12", 200, success("u-base"))
        .release_parent()
        .remove());
    assert_eq!(broken, []);
}

#[test]
fn law_1_a_delete_is_of_what_was_seen_to_be_ours_and_is_on_record() {
    let delete =
        |uid: &str, version: &str| story!(Story::life(), |s| s.delete(&map("top"), uid, version, 500, json!({})));
    assert_eq!(delete("u-top", "11"), []);
    assert_eq!(delete("u-top", "99"), [Law::OnlyOurs], "a state that was never seen");
    assert_eq!(delete("u-other", "11"), [Law::OnlyOurs, Law::OnlyOurs], "an incarnation that was never seen");
    let bare = |body: Value| story!(Story::life(), |s| s.call(Verb::Delete, &map("top"), body, 500, json!({})));
    assert_eq!(bare(Value::Null), [Law::OnlyOurs], "no precondition");
    assert_eq!(bare(json!({"preconditions": {"uid": "u-top"}})), [Law::OnlyOurs], "UID alone, without lost rounds");
    let many = story!(Story::life(), |s| {
        for _ in 0..3 {
            s.delete(&map("top"), "u-top", "11", 409, refusal("Conflict"));
        }
        s.call(Verb::Delete, &map("top"), json!({"preconditions": {"uid": "u-top"}}), 500, json!({}))
    });
    assert_eq!(many, [], "UID alone, after lost rounds");
    let unmarked = story!(Story::life(), |s| s.get(&map("top"), object(&map("top"), "u-top", "12", false)).delete(
        &map("top"),
        "u-top",
        "12",
        500,
        json!({})
    ));
    assert_eq!(unmarked, [Law::OnlyOurs], "the mark was taken off");
    let mut copied = object(&map("top"), "u-top", "12", false);
    copied["metadata"]["annotations"] = object(&map("base"), "", "", true)["metadata"]["annotations"].clone();
    let copied =
        story!(Story::life(), |s| s.get(&map("top"), copied).delete(&map("top"), "u-top", "12", 500, json!({})));
    assert_eq!(copied, [Law::OnlyOurs], "a copied mark");
    let off_record = story!(Story::life(), |s| s.get(&map("more"), object(&map("more"), "u-more", "12", true)).delete(
        &map("more"),
        "u-more",
        "12",
        500,
        json!({})
    ));
    assert_eq!(off_record, [Law::OnlyOurs]);
    let both = [(map("base"), Some("u-base")), (map("top"), Some("u-top"))];
    let view = |loaded: bool| {
        story!(Story::life(), |s| {
            s.operator = 1;
            if loaded {
                s.load(&both);
            }
            s.get(&map("top"), object(&map("top"), "u-top", "11", true));
            s.operator = 0;
            s.get(&map("top"), not_found(&map("top"))).store(&both[..1]);
            s.operator = 1;
            s.delete(&map("top"), "u-top", "11", 404, not_found(&map("top")))
        })
    };
    assert_eq!(view(true), [], "on record, as far as this operator has been told");
    assert_eq!(view(false), [Law::OnlyOurs], "it never read the record");
    let all = story!(Story::life(), |s| s.call(Verb::DeleteCollection, &map("top"), Value::Null, 500, json!({})));
    assert_eq!(all, [Law::OnlyOurs]);
}

#[test]
fn law_2_what_depends_on_it_was_proven_gone() {
    let after = |proof: &dyn Fn(&mut Story)| {
        story!(Story::life(), |s| {
            proof(&mut s);
            s.delete(&map("base"), "u-base", "10", 500, json!({}))
        })
    };
    let top = map("top");
    let live = |version| object(&top, "u-top", version, true);
    assert_eq!(after(&|_| {}), [Law::Order]);
    assert_eq!(
        after(&|s| {
            s.get(&top, not_found(&top));
        }),
        []
    );
    assert_eq!(
        after(&|s| {
            s.delete(&top, "u-top", "11", 200, success("u-top"));
        }),
        []
    );
    assert_eq!(
        after(&|s| {
            s.delete(&top, "u-top", "11", 200, live("12"));
        }),
        [],
        "the object, with nothing to keep it"
    );
    assert_eq!(
        after(&|s| {
            s.get(&top, object(&top, "u-new", "12", false));
        }),
        [],
        "replaced by a foreign one"
    );
    let kept = going(live("12"), &["x.io/held"]);
    assert_eq!(
        after(&|s| {
            s.delete(&top, "u-top", "11", 200, kept.clone());
        }),
        [Law::Order],
        "accepted is not gone"
    );
    let plain = json!("404 page not found");
    assert_eq!(
        after(&|s| {
            s.call(Verb::Get, &top, Value::Null, 404, plain.clone());
        }),
        [Law::Order]
    );
    assert_eq!(
        after(&|s| {
            s.get(&top, not_found(&map("base")));
        }),
        [Law::Order],
        "about another object"
    );
    assert_eq!(
        after(&|s| {
            s.call(Verb::Get, &top, Value::Null, 403, refusal("Forbidden"));
        }),
        [Law::Order]
    );
    assert_eq!(
        after(&|s| {
            s.get(&top, object(&top, "u-new", "12", true));
        }),
        [Law::Order],
        "recreated with our mark"
    );
    let recreated = after(&|s| {
        s.get(&top, not_found(&top));
        s.made(Verb::Create, &top, json!({}));
    });
    assert_eq!(recreated, [Law::ClosedDoor, Law::Order], "a create since");
    let by_another = after(&|s| {
        s.operator = 1;
        s.get(&top, not_found(&top));
        s.operator = 0;
    });
    assert_eq!(by_another, [Law::Order], "what another operator was told is no proof");
}

#[test]
fn law_2_holds_for_namespaces_definitions_and_owners() {
    let namespace = Id::new("", "namespaces", None, "b");
    let definition = Id::definition("x.io", "widgets");
    let widget = Id::new("x.io", "widgets", Some("b"), "w");
    let story = |id: &Id, proven: &[&Id]| {
        let entries = [(namespace.clone(), None), (definition.clone(), None), (widget.clone(), None)];
        let mut s = Story::default();
        s.store(&entries).parent_read();
        for (id, uid) in [(&namespace, "u-n"), (&definition, "u-d"), (&widget, "u-w")] {
            s.post(id, uid, uid);
        }
        proven.iter().for_each(|id| {
            s.get(id, not_found(id));
        });
        let uid = if *id == namespace { "u-n" } else { "u-d" };
        s.delete(id, uid, uid, 500, json!({}));
        s.broken()
    };
    assert_eq!(story(&namespace, &[]), [Law::Order]);
    assert_eq!(story(&definition, &[]), [Law::Order]);
    assert_eq!(story(&namespace, &[&widget]), []);
    assert_eq!(story(&namespace, &[&definition]), [], "a kind that is gone has no objects");
    let owner = Id::new("x.io", "fooowners", Some("b"), "o");
    let owned = |proven: bool| {
        let mut s = Story::default();
        s.store(&[(owner.clone(), None), (map("top"), None)]).parent_read().post(&owner, "u-o", "3");
        let reference = json!([{"apiVersion": "x.io/v1", "kind": "FooOwner", "name": "o", "uid": "u-o"}]);
        let body = json!({"metadata": {"name": "top", "ownerReferences": reference}});
        s.call(Verb::Create, &map("top"), body, 201, object(&map("top"), "u-top", "4", true));
        if proven {
            s.get(&map("top"), not_found(&map("top")));
        }
        s.delete(&owner, "u-o", "3", 500, json!({}));
        s.broken()
    };
    assert_eq!(owned(false), [Law::Order]);
    assert_eq!(owned(true), []);
}

#[test]
fn law_3_the_parent_goes_when_all_is_proven_gone() {
    let early = story!(Story::life(), |s| s
        .parent_going()
        .delete(&map("top"), "u-top", "11", 200, success("u-top"))
        .release_parent());
    assert_eq!(early, [Law::Proof]);
    let merge = story!(Story::life(), |s| {
        let patch = json!({"metadata": {"resourceVersion": "1", "finalizers": null}});
        s.call(Verb::Patch, &parent().id, patch, 200, json!({}))
    });
    assert_eq!(merge, [Law::Proof, Law::Proof]);
    let foreign = story!(Story::life(), |s| {
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": []},
            {"op": "replace", "path": "/metadata/finalizers", "value": [format!("{MANAGER}/custody")]},
        ]);
        s.call(Verb::Patch, &parent().id, patch, 200, json!({}))
    });
    assert_eq!(foreign, [], "only the manager's finalizers are the manager's promise");
}

#[test]
fn law_4_nothing_is_created_before_it_is_on_record() {
    let create = |entries: &[(Id, Option<&str>)]| {
        story!(Story::default(), |s| s.store(entries).parent_read().post(&map("top"), "u", "1"))
    };
    assert_eq!(create(&[(map("top"), None)]), []);
    assert_eq!(create(&[(map("base"), None)]), [Law::WriteAhead]);
    let lost = story!(Story::default(), |s| {
        s.tell(What::Storing(Some(record(&[(map("top"), None)], ""))));
        s.tell(What::NotStored);
        s.parent_read().post(&map("top"), "u", "1")
    });
    assert_eq!(lost, [Law::WriteAhead], "the record was not stored");
    let apply = |uid: Value| {
        let body = json!({"apply": true, "metadata": {"name": "top", "uid": uid}});
        story!(Story::life(), |s| s.call(Verb::Patch, &map("top"), body, 200, json!({})))
    };
    assert_eq!(apply(json!("u-top")), []);
    assert_eq!(apply(Value::Null), [Law::WriteAhead], "an apply without UID may create");
}

#[test]
fn law_5_an_entry_leaves_the_record_only_on_proof() {
    let both = [(map("base"), Some("u-base")), (map("top"), Some("u-top"))];
    let shrink = |proof: &dyn Fn(&mut Story)| {
        story!(Story::life(), |s| {
            proof(&mut s);
            s.store(&both[..1])
        })
    };
    let top = map("top");
    assert_eq!(shrink(&|_| {}), [Law::NoForgetting]);
    assert_eq!(
        shrink(&|s| {
            s.delete(&top, "u-top", "11", 200, success("u-top"));
        }),
        []
    );
    let kept = going(object(&top, "u-top", "12", true), &["x.io/held"]);
    assert_eq!(
        shrink(&|s| {
            s.delete(&top, "u-top", "11", 200, kept.clone());
        }),
        [Law::NoForgetting]
    );
    assert_eq!(
        shrink(&|s| {
            s.delete(&top, "u-top", "11", 500, refusal("Timeout"));
        }),
        [Law::NoForgetting]
    );
    assert_eq!(story!(Story::life(), |s| s.remove()), [Law::NoForgetting, Law::NoForgetting]);
    assert_eq!(story!(Story::life(), |s| s.load(&both)), []);
    assert_eq!(story!(Story::life(), |s| s.load(&both[..1])), [Law::NoForgetting], "a lost update");
    let unknown = |proof: bool| {
        story!(Story::life(), |s| {
            if proof {
                s.get(&top, not_found(&top));
            }
            s.tell(What::Storing(Some(record(&both[..1], ""))));
            s.operator = 1;
            s.load(&both[..1])
        })
    };
    assert_eq!(unknown(true), [], "a save whose answer was lost");
    assert_eq!(unknown(false), [Law::NoForgetting]);
    let never_ours = |taken: bool| {
        story!(Story::default(), |s| {
            s.store(&both[..1]).load(&both[..1]).store(&[both[0].clone(), (map("top"), None)]).parent_read();
            if taken {
                s.call(Verb::Create, &top, json!({}), 409, refusal("AlreadyExists"));
            }
            s.get(&top, object(&top, "u-foreign", "5", false)).store(&both[..1])
        })
    };
    assert_eq!(never_ours(true), []);
    assert_eq!(never_ours(false), [Law::NoForgetting], "an intended entry may be ours by a lost answer");
}

#[test]
fn law_5_what_others_take_away_is_not_forgotten_by_the_operator() {
    let mut story = Story::life();
    let began = Duration::from_millis(story.events.len() as u64 + 1);
    story.tell(What::Loaded { record: None, began });
    assert_eq!(story.broken(), [Law::NoForgetting; 2]);

    let mut story = Story::life();
    let began = story.tell(What::Robbed);
    story.tell(What::Loaded { record: None, began });
    assert_eq!(story.broken(), []);
    // What was found, and can be stored nowhere, is deleted as what is on record.
    let [top, base] = [map("top"), map("base")];
    story.tell(What::Storing(Some(record(&[(top.clone(), Some("u-top")), (base, Some("u-base"))], ""))));
    story.tell(What::NoRoom);
    story.delete(&top, "u-top", "11", 200, success("u-top"));
    assert_eq!(story.broken(), []);
}

#[test]
fn law_1_what_carries_a_mark_that_it_is_to_be_kept_is_not_deleted() {
    let mut story = Story::life();
    let top = map("top");
    let mut kept = object(&top, "u-top", "12", true);
    kept["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    story.get(&top, kept).delete(&top, "u-top", "12", 200, success("u-top"));
    assert_eq!(story.broken(), [Law::OnlyOurs]);
}

#[test]
fn law_6_owners_are_live_and_in_reach() {
    let owner = |namespace: Option<&str>| Id::new("x.io", "fooowners", namespace, "o");
    let create = |owner: &Id, read: Option<Value>, version: &str| {
        let mut s = Story::default();
        s.store(&[(map("top"), None), (owner.clone(), None)]).parent_read();
        if let Some(read) = read {
            s.get(owner, read);
        }
        let reference = json!([{"apiVersion": version, "kind": "FooOwner", "name": "o", "uid": "u-o"}]);
        let body = json!({"metadata": {"name": "top", "ownerReferences": reference}});
        s.call(Verb::Create, &map("top"), body, 201, object(&map("top"), "u-top", "4", true));
        s.broken()
    };
    let live = |id: &Id| Some(object(id, "u-o", "3", true));
    let (here, there, cluster) = (owner(Some("b")), owner(Some("c")), owner(None));
    assert_eq!(create(&here, live(&here), "x.io/v1"), []);
    assert_eq!(create(&cluster, live(&cluster), "x.io/v1"), []);
    assert_eq!(create(&there, live(&there), "x.io/v1"), [Law::LegalReferences]);
    assert_eq!(create(&here, None, "x.io/v1"), [Law::LegalReferences]);
    assert_eq!(create(&here, live(&here), "x.io/v0"), [Law::LegalReferences]);
    assert_eq!(create(&here, Some(going(object(&here, "u-o", "3", true), &[])), "x.io/v1"), [Law::LegalReferences]);
    assert_eq!(create(&here, Some(object(&here, "u-older", "3", true)), "x.io/v1"), [Law::LegalReferences]);
}

#[test]
fn law_7_creates_follow_a_look_at_the_parent() {
    let entries = [(map("top"), None), (map("base"), None)];
    let post = |look: &dyn Fn(&mut Story)| {
        story!(Story::default(), |s| {
            look(&mut s);
            s.post(&map("top"), "u", "1")
        })
    };
    assert_eq!(
        post(&|s| {
            s.store(&entries).parent_read();
        }),
        []
    );
    assert_eq!(
        post(&|s| {
            s.parent_read().store(&entries);
        }),
        [Law::ClosedDoor],
        "read before the record was written"
    );
    assert_eq!(
        post(&|s| {
            s.store(&entries);
        }),
        [Law::ClosedDoor]
    );
    assert_eq!(
        post(&|s| {
            s.store(&entries).parent_read().parent_going();
        }),
        [Law::ClosedDoor]
    );
    assert_eq!(
        post(&|s| {
            s.store(&entries).get(&parent().id, not_found(&parent().id));
        }),
        [Law::ClosedDoor]
    );
    let next_pass = post(&|s| {
        s.store(&entries).parent_read();
        s.tell(What::Pass);
    });
    assert_eq!(next_pass, [Law::ClosedDoor], "each pass looks for itself");
    let apply = json!({"apply": true, "metadata": {"name": "top", "uid": "u-top"}});
    let late = story!(Story::life(), |s| s.parent_going().call(Verb::Patch, &map("top"), apply, 200, json!({})));
    assert_eq!(late, [Law::ClosedDoor]);
}

#[test]
fn law_9_an_incarnation_is_deleted_once() {
    let top = map("top");
    let kept = going(object(&top, "u-top", "12", true), &["x.io/held"]);
    let again = story!(Story::life(), |s| s.delete(&top, "u-top", "11", 200, kept.clone()).delete(
        &top,
        "u-top",
        "12",
        409,
        refusal("Conflict")
    ));
    assert_eq!(again, [Law::Once], "seen terminating");
    let twice = story!(Story::life(), |s| {
        let body = json!({"preconditions": {"uid": "u-top", "resourceVersion": "11"}});
        let (request, _) = s.made(Verb::Delete, &top, body);
        s.tell(What::Accepted(request, kept.clone()));
        s.delete(&top, "u-top", "11", 200, kept)
    });
    assert_eq!(twice, [Law::Once], "carried out twice, though the first answer was lost");
}

#[test]
fn law_11_lists_are_not_written_blindly() {
    let top = map("top");
    let patch = |patch: Value| story!(Story::life(), |s| s.call(Verb::Patch, &top, patch, 200, json!({})));
    let remove = json!({"op": "remove", "path": "/metadata/ownerReferences/0"});
    assert_eq!(patch(json!([remove])), [Law::HandsOff]);
    assert_eq!(patch(json!([{"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": "u"}, remove])), []);
    let whole = json!({"op": "replace", "path": "/metadata/finalizers", "value": []});
    assert_eq!(patch(json!([whole])), [Law::HandsOff]);
    assert_eq!(patch(json!([{"op": "test", "path": "/metadata/uid", "value": "u-top"}, whole])), [Law::HandsOff]);
    assert_eq!(patch(json!([{"op": "test", "path": "/metadata/finalizers", "value": ["a"]}, whole])), []);
    assert_eq!(patch(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "11"}, whole])), []);
    assert_eq!(patch(json!({"metadata": {"finalizers": []}})), [Law::HandsOff]);
    assert_eq!(patch(json!({"metadata": {"finalizers": [], "resourceVersion": "11"}})), []);
    let put = |body: Value| story!(Story::life(), |s| s.call(Verb::Update, &top, body, 200, json!({})));
    assert_eq!(put(json!({"metadata": {}})), [Law::HandsOff]);
    assert_eq!(put(json!({"metadata": {"resourceVersion": "11"}})), []);
}

#[test]
fn law_12_secrets_stay_where_they_are() {
    let secret = Id::new("", "secrets", Some("b"), "s");
    let body = json!({"metadata": {"name": "s"}, "stringData": {"key": "hush"}});
    let posted = |id: &Id| {
        let mut s = Story::default();
        s.store(&[(secret.clone(), None), (map("top"), None)]).parent_read();
        s.call(Verb::Create, id, body.clone(), 201, json!({}));
        s.broken()
    };
    assert_eq!(posted(&secret), []);
    assert_eq!(posted(&map("top")), [Law::Discretion]);
    assert_eq!(
        story!(Story::life(), |s| s.store_text(&[(map("base"), None), (map("top"), None)], "hush")),
        [Law::Discretion]
    );
    let event = Id::new("", "events", Some("b"), "e");
    let event = story!(Story::life(), |s| s.call(
        Verb::Patch,
        &event,
        json!({"message": "hush", "metadata": {"uid": "e"}}),
        200,
        json!({})
    ));
    assert_eq!(event, [Law::Discretion]);
}
