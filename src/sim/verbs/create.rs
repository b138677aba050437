//! POST, and the creation by an apply.

use std::sync::Arc;

use serde_json::{Value, json};

use super::prepare::{check_custom, check_place, check_type, fill_new, normalize};
use crate::sim::{
    admission::{Operation, Review, into_namespace},
    managers::{self, Writer},
    meta::{generate_name, validate},
    request::{Ask, Payload},
    status::{Refusal, already_exists, forbidden, internal, invalid},
    storage::key,
    value::{is_deleting, meta_mut, name, set, text},
    world::{Reply, World, shape_of},
};

/// What only the server may say of an object.
const SYSTEM: &[&str] = &["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

impl World {
    pub(in crate::sim) fn create(&mut self, ask: &Ask) -> Result<Reply, Refusal> {
        let Payload::Object(sent) = &ask.payload else { return Err(internal("a create has an object")) };
        check_type(ask, sent)?;
        let mut object = sent.clone();
        check_place(ask, &mut object)?;
        if name(&object).is_empty() && !generate_name(&object).is_empty() {
            let generated = format!("{}{}", generate_name(&object), self.rng.suffix());
            set(&mut object, "name", Some(json!(generated)));
        }
        self.may_create(ask, name(&object))?;
        for field in SYSTEM {
            meta_mut(&mut object).remove(*field);
        }
        let versioned = !text(&object, "resourceVersion").is_empty();
        meta_mut(&mut object).remove("resourceVersion");
        normalize(&ask.resource, &ask.version, &mut object);
        fill_new(&ask.resource, &ask.version, &mut object);
        let nothing = json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {}});
        let now = self.now();
        managers::update(&nothing, &mut object, true, self.writer(ask, &now, &ask.api_version()));
        let object = self.insert(ask, object, versioned)?;
        Ok(Reply::Object { code: 201, object })
    }

    /// Whether anything of this kind may be created here.
    pub(super) fn may_create(&self, ask: &Ask, name: &str) -> Result<(), Refusal> {
        if ask.resource.terminating {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(forbidden(&ask.resource, name, why, &[]));
        }
        if ask.resource.namespaced {
            let namespace = self.namespace(&ask.namespace).map(|namespace| &**namespace);
            into_namespace(&ask.resource, name, &ask.namespace, namespace)?;
        }
        Ok(())
    }

    /// Stores a new object after the last checks.
    pub(super) fn insert(&mut self, ask: &Ask, mut object: Value, versioned: bool) -> Result<Arc<Value>, Refusal> {
        let now = self.now();
        set(&mut object, "creationTimestamp", Some(json!(now)));
        set(&mut object, "uid", Some(json!(self.rng.uid())));
        let mut errors = validate(&ask.resource, &object, true);
        errors.extend(check_custom(ask, &object)?);
        if !errors.is_empty() {
            return Err(invalid(&ask.resource, name(&object), &errors));
        }
        self.admission.references(ask, &self.catalogue, None, &object)?;
        self.admission.review(&review(ask, Operation::Create, Some(&object), None), name(&object))?;
        let key = key(&ask.namespace, name(&object));
        if let Some(known) = self.storage.get(ask.resource.id, &key) {
            return Err(already_exists(&ask.resource, name(known), is_deleting(known)));
        }
        if versioned {
            return Err(internal("resourceVersion should not be set on objects to be created"));
        }
        Ok(if ask.dry_run { Arc::new(object) } else { self.storage.put(ask.resource.id, &key, object) })
    }

    /// The writer of a request, for the managers of fields.
    pub(super) fn writer<'a>(&self, ask: &'a Ask, now: &'a str, api_version: &'a str) -> Writer<'a> {
        Writer {
            manager: &ask.manager,
            api_version,
            subresource: &ask.subresource,
            now,
            shape: shape_of(&ask.resource, &ask.version),
            status_apart: ask.resource.version(&ask.version).is_some_and(|version| version.status),
            custom: ask.resource.is_custom(),
        }
    }
}

/// What policies are shown of a request.
pub(super) fn review<'a>(
    ask: &'a Ask,
    operation: Operation,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
) -> Review<'a> {
    Review {
        user: &ask.user,
        operation,
        group: &ask.resource.group,
        plural: &ask.resource.plural,
        subresource: &ask.subresource,
        object,
        old_object,
        dry_run: ask.dry_run,
    }
}
