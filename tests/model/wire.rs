//! Between an operator's client and the control plane: everything is put on record, and things happen in between.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Frame;
use kube::{Client, client::Body};
use kube_custody::{
    object::ParentRef,
    sim::{Cluster, Trouble},
};
use serde_json::Value;
use tower::Service;

use super::{dice::Dice, stage::Stagehand, things};
use crate::laws::{
    history::{self, Event, History, Verb, What},
    store::Tape,
};

tokio::task_local! {
    /// The parent that is being reconciled, by number.
    pub static PARENT: usize;
}

/// Most parents of a scenario. A process has as many operator numbers in the history, one a parent.
pub const PARENTS: usize = 2;

/// The record of what operators do.
#[derive(Debug, Default)]
pub struct Record {
    events: Mutex<Vec<Event>>,
}

impl Record {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap()
    }

    /// The number of things on record, which is the clock of the record, too.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.events().len() as u64)
    }

    pub fn note(&self, operators: impl IntoIterator<Item = usize>, what: &What) {
        let mut events = self.events();
        for operator in operators {
            let at = Duration::from_nanos(events.len() as u64 + 1);
            events.push(Event { at, operator, what: what.clone() });
        }
    }

    pub fn history(&self, operators: impl Fn(usize) -> bool) -> History {
        let mut history = History::default();
        history.extend(self.events().iter().filter(|event| operators(event.operator)).cloned());
        history
    }
}

/// One process of an operator.
#[derive(Debug)]
pub struct Process {
    pub number: usize,
    dead: AtomicBool,
    died: tokio::sync::Notify,
}

impl Process {
    pub fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { number, dead: AtomicBool::new(false), died: tokio::sync::Notify::new() })
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.died.notify_waiters();
    }

    pub async fn death(&self) {
        let died = self.died.notified();
        if !self.is_dead() {
            died.await;
        }
    }

    /// Its number in the history of a parent.
    pub fn operator(&self, parent: usize) -> usize {
        self.number * PARENTS + parent
    }

    /// Whom what happens concerns: the parent that is being reconciled, or all of them.
    fn operators(&self) -> Vec<usize> {
        match PARENT.try_with(|parent| *parent) {
            Ok(parent) => vec![self.operator(parent)],
            Err(_) => (0..PARENTS).map(|parent| self.operator(parent)).collect(),
        }
    }
}

/// Puts on record what a process does about one parent.
#[derive(Clone, Debug)]
pub struct ProcessTape {
    pub record: Arc<Record>,
    pub process: Arc<Process>,
}

impl ProcessTape {
    fn note(&self, what: What) {
        self.record.note(self.process.operators(), &what);
    }
}

impl Tape for ProcessTape {
    fn now(&self) -> Duration {
        self.record.now()
    }

    fn note(&self, parent: &ParentRef, what: What) {
        // That one parent looks at the record of the other one is no part of the other's story.
        let number = (0..PARENTS).find(|number| things::parent_name(*number) == parent.id.name());
        let number = number.filter(|number| PARENT.try_with(|parent| parent == number).unwrap_or(true));
        self.record.note(number.map(|number| self.process.operator(number)), &what);
    }

    fn is_cut(&self) -> bool {
        self.process.is_dead()
    }
}

/// The connection of one process.
#[derive(Clone)]
pub struct Wire<S> {
    pub inner: S,
    pub cluster: Cluster,
    pub hand: Arc<Stagehand>,
    pub tape: ProcessTape,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[error("connection lost (planned)")]
pub struct Broken;

impl<S, B> Service<Request<Body>> for Wire<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = kube_custody::sim::Lost> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    type Response = Response<Recorded>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Response<Recorded>, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

impl<S, B> Wire<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = kube_custody::sim::Lost> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    async fn serve(self, request: Request<Body>) -> Result<Response<Recorded>, Broken> {
        let process = Arc::clone(&self.tape.process);
        if process.is_dead() {
            return std::future::pending().await;
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.map_err(|_| Broken)?;
        let asked = request_of(&parts, &bytes).map(Arc::new);
        let made = self.tape.now() + Duration::from_nanos(1);
        if let Some(asked) = &asked {
            self.tape.note(What::Made(Arc::clone(asked)));
        }
        let (number, trouble) = self.hand.before_call(asked.as_deref()).await;
        let mut dice = Dice::of_key(self.hand.seed(), number as u64);
        self.hand.let_others_work(&mut dice).await;
        if process.is_dead() {
            return std::future::pending().await;
        }
        let refused = match trouble {
            Some(Trouble::Refused(code)) => Some(refusal(code)),
            Some(Trouble::Unsent) => return Err(Broken),
            Some(Trouble::CrashBefore) => {
                process.kill();
                return std::future::pending().await;
            }
            None | Some(_) => None,
        };
        let answered = match refused {
            Some((code, body)) => Whole { code, content_type: JSON, bytes: body.to_string().into() }.into(),
            None => {
                let again = (trouble == Some(Trouble::Repeated)).then(|| copy(&parts, &bytes));
                if let Some(again) = again {
                    self.send(again, asked.as_ref()).await?;
                }
                if let Some(trouble @ Trouble::Stale(_)) = trouble {
                    self.cluster.inject(kube_custody::sim::Fault::new(trouble));
                }
                let answer = self.send(copy(&parts, &bytes), asked.as_ref()).await?;
                self.cluster.clear_faults();
                answer
            }
        };
        match trouble {
            Some(Trouble::AnswerLost) => return Err(Broken),
            Some(Trouble::TimedOut(after)) => {
                tokio::time::sleep(after).await;
                return Err(Broken);
            }
            Some(Trouble::CrashAfter) => {
                process.kill();
                return std::future::pending().await;
            }
            _ => {}
        }
        self.hand.let_others_go_first(&mut dice).await;
        if process.is_dead() {
            return std::future::pending().await;
        }
        Ok(self.deliver(answered, asked, made))
    }

    /// Carries out a request, and puts on record what it changed.
    async fn send(&self, request: Request<Body>, asked: Option<&Arc<history::Request>>) -> Result<Answered<B>, Broken> {
        let before = self.cluster.version();
        let mut inner = self.inner.clone();
        // Answered by the first poll, so nothing comes in between.
        let response = inner.call(request).await.map_err(|_| Broken)?;
        let changed = self.cluster.version() != before;
        let (head, mut body) = response.into_parts();
        if asked.is_some_and(|asked| asked.verb == Verb::Watch) && head.status.is_success() {
            return Ok(Answered::Watch(body));
        }
        let mut bytes = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            bytes.extend(frame.ok().and_then(|frame| frame.into_data().ok()).unwrap_or_default());
        }
        let code = head.status.as_u16();
        if let Some(asked) = asked.filter(|_| changed && head.status.is_success()) {
            let answer = serde_json::from_slice(&bytes).unwrap_or_default();
            self.tape.note(What::Accepted(Arc::clone(asked), answer));
        }
        let content_type = head.headers.get(header::CONTENT_TYPE).cloned().unwrap_or(JSON);
        Ok(Whole { code, content_type, bytes: bytes.into() }.into())
    }

    fn deliver(
        &self,
        answered: Answered<B>,
        asked: Option<Arc<history::Request>>,
        made: Duration,
    ) -> Response<Recorded> {
        let (code, content_type, body) = match answered {
            Answered::Watch(body) => {
                let watched = Watched { body: Box::new(body), tape: self.tape.clone(), request: asked };
                (200, JSON, Recorded::Watch(watched))
            }
            Answered::Whole(Whole { code, content_type, bytes }) => {
                if let Some(request) = asked {
                    let answer = serde_json::from_slice(&bytes).unwrap_or_default();
                    self.hand.told(&request, code);
                    self.tape.note(What::Told { request, code, answer, made });
                }
                (code, content_type, Recorded::Whole(Some(bytes)))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

struct Whole {
    code: u16,
    content_type: HeaderValue,
    bytes: Bytes,
}

enum Answered<B> {
    Whole(Whole),
    Watch(B),
}

impl<B> From<Whole> for Answered<B> {
    fn from(whole: Whole) -> Self {
        Self::Whole(whole)
    }
}

fn copy(parts: &http::request::Parts, bytes: &Bytes) -> Request<Body> {
    let mut request = Request::new(Body::from(bytes.to_vec()));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.uri.clone();
    *request.headers_mut() = parts.headers.clone();
    request
}

/// A refusal as something on the way to the API server, or the server itself, makes it.
pub fn refusal(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    let mut body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused (planned)", "reason": reason, "code": code,
    });
    if matches!(code, 429 | 503) {
        body["details"] = serde_json::json!({"retryAfterSeconds": 1});
    }
    (code, body)
}

fn request_of(parts: &http::request::Parts, bytes: &Bytes) -> Option<history::Request> {
    let path = parts.uri.path();
    let mut segments = path.trim_matches('/').split('/');
    let (group, version) = match segments.next()? {
        "api" => ("", segments.next()?),
        "apis" => (segments.next()?, segments.next()?),
        _ => return None,
    };
    let mut rest: Vec<&str> = segments.collect();
    let mut namespace = None;
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        namespace = Some(rest[1].to_owned());
        rest.drain(..2);
    }
    let plural = (*rest.first()?).to_owned();
    let query = parts.uri.query().unwrap_or("");
    let asks = |name: &str| query.split('&').any(|part| part.split('=').next() == Some(name));
    let body: Option<Value> = serde_json::from_slice(bytes).ok();
    let mut name = rest.get(1).map(|name| (*name).to_owned());
    let verb = match (&parts.method, &name) {
        (&Method::GET, _) if asks("watch") => Verb::Watch,
        (&Method::GET, Some(_)) => Verb::Get,
        (&Method::GET, None) => Verb::List,
        (&Method::POST, _) => Verb::Create,
        (&Method::PUT, _) => Verb::Update,
        (&Method::PATCH, _) => Verb::Patch,
        (&Method::DELETE, Some(_)) => Verb::Delete,
        (&Method::DELETE, None) => Verb::DeleteCollection,
        _ => return None,
    };
    if verb == Verb::Create {
        let given = body.as_ref().and_then(|body| body.pointer("/metadata/name")).and_then(Value::as_str);
        name = given.map(ToOwned::to_owned);
    }
    let dry_run = asks("dryRun") || body.as_ref().is_some_and(|body| body.get("dryRun").is_some());
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let subresource = rest.get(2).map(|name| (*name).to_owned());
    let text = format!("{} {}", format!("{verb:?}").to_lowercase(), path.trim_start_matches("/api"));
    Some(history::Request {
        verb,
        group: group.to_owned(),
        version: version.to_owned(),
        plural,
        namespace,
        name,
        subresource,
        content_type: content_type.to_owned(),
        dry_run,
        body,
        text,
    })
}

/// An answer on its way to the operator.
#[derive(Debug)]
pub enum Recorded {
    Whole(Option<Bytes>),
    Watch(Watched),
}

type AnyBody = Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin>;

/// A watch of which each event is put on record when the operator gets it.
pub struct Watched {
    body: AnyBody,
    tape: ProcessTape,
    request: Option<Arc<history::Request>>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Watched {
    fn take(&self, bytes: &Bytes) {
        let Some(request) = &self.request else { return };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Ok(mut event) = serde_json::from_slice::<Value>(line) else { continue };
            // A DELETED event shows the last state, which is no more.
            if event["type"] == "ADDED" || event["type"] == "MODIFIED" {
                let object = event["object"].take();
                self.tape.note(What::Watched { request: Arc::clone(request), object });
            }
        }
    }
}

impl http_body::Body for Recorded {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Watch(watched) => {
                if watched.tape.process.is_dead() {
                    return Poll::Pending;
                }
                let next = Pin::new(&mut watched.body).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &next
                    && let Some(bytes) = frame.data_ref()
                {
                    watched.take(bytes);
                }
                next
            }
        }
    }
}

/// A client of a process.
pub fn client(cluster: &Cluster, hand: &Arc<Stagehand>, tape: &ProcessTape) -> Client {
    let inner = cluster.service_as("operator");
    let wire = Wire { inner, cluster: cluster.clone(), hand: Arc::clone(hand), tape: tape.clone() };
    Client::new(wire, "default")
}
