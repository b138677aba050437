//! Requests to proceed without dependents.

use serde_json::{Value, json};

use super::{
    super::request::{Forced, Unfollowed, judge},
    *,
};
use crate::{
    force::{Allowed, Refused},
    manager::Manager,
    object::GroupKind,
};

fn asked(allowed: &Allowed, of: &str, request: &Value) -> (Forced, Option<Unfollowed>) {
    judge(&Manager::new("ours.example.com").unwrap(), allowed, &live(of), Some(&request.to_string()))
}

fn anybody() -> Allowed {
    Allowed::nothing().dependents(GroupKind::new("", "ConfigMap").unwrap())
}

fn request() -> Value {
    json!({"uid": "uid-base", "dependents": [{"object": "ConfigMap n/app", "uid": "uid-app"}], "reason": "lost"})
}

#[test]
fn c45_a_request_is_bound_to_the_incarnations_it_was_made_for() {
    let (forced, unfollowed) = asked(&anybody(), "base", &request());
    assert_eq!((forced.dependents.into_iter().collect::<Vec<_>>(), unfollowed), (vec![live("app")], None));
    assert_eq!(forced.reason.as_deref(), Some("lost"));
    let (forced, unfollowed) = asked(&anybody(), "neighbour", &request());
    assert!(forced.dependents.is_empty());
    assert!(matches!(unfollowed, Some(Unfollowed::Refused(all)) if matches!(&*all, [Refused::OtherParent { .. }])));
}

#[test]
fn what_is_not_admitted_is_said_and_what_is_others_business_is_not() {
    let (forced, unfollowed) = asked(&Allowed::nothing(), "base", &request());
    assert!(forced.dependents.is_empty());
    assert!(unfollowed.unwrap().to_string().contains("ConfigMap n/app is waited for all the same"));
    let other = json!({"uid": "uid-base", "abandon": [{"object": "ConfigMap n/x", "uid": "u"}]});
    assert_eq!(asked(&Allowed::nothing(), "base", &other).1, None);
    let (forced, unfollowed) = asked(&anybody(), "base", &json!({"dependents": "all"}));
    assert!(forced.dependents.is_empty() && matches!(unfollowed, Some(Unfollowed::Unreadable(_))));
}
