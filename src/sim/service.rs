//! The wire: requests of a `kube::Client` in, answers out. All waiting is here.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body::Frame;
use kube_client::client::Body;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::{
    audit::{Target, Verb},
    cluster::Shared,
    discovery,
    faults::{self, Trouble},
    request::{Ask, Raw, Routed, route},
    status::{NOT_SERVED, Refusal},
    verbs::watch::{Next, WatchSpec},
    view::{self, View},
    world::{Reply, World},
};

/// How often a quiet watch sends a bookmark.
const BOOKMARK: Duration = Duration::from_secs(60);

/// Why a caller gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The connection failed before the call was sent.
    #[error("connection refused (a fault of the sim)")]
    Unsent,
    /// The connection failed before the answer came.
    #[error("connection reset before the answer came (a fault of the sim)")]
    Reset,
    /// The answer took too long.
    #[error("timed out (a fault of the sim)")]
    TimedOut,
}

/// The API server as one client sees it.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    pub(super) user: Arc<str>,
    /// Whether the client has died.
    pub(super) dead: Arc<AtomicBool>,
}

impl Service<Request<Body>> for Server {
    type Response = Response<Answer>;
    type Error = Lost;
    type Future = BoxFuture<'static, Result<Response<Answer>, Lost>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

/// What to do once the lock is free again.
enum Verdict {
    Answer(Response<Answer>),
    Lose(Lost, Duration),
    Die,
}

impl Server {
    async fn serve(self, request: Request<Body>) -> Result<Response<Answer>, Lost> {
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(|_| Lost::Unsent)?;
        let text = |name: header::HeaderName| {
            parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let content_type = text(header::CONTENT_TYPE);
        let raw = Raw {
            user: Arc::clone(&self.user),
            method: parts.method.as_str().to_owned(),
            path: parts.uri.path().to_owned(),
            query: form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect(),
            content_type: content_type.split(';').next().unwrap_or_default().trim().to_owned(),
            accept: text(header::ACCEPT),
            user_agent: text(header::USER_AGENT),
            body,
        };
        match self.decide(&raw) {
            Verdict::Answer(response) => Ok(response),
            Verdict::Lose(lost, after) => {
                tokio::time::sleep(after).await;
                Err(lost)
            }
            Verdict::Die => {
                self.dead.store(true, Ordering::Relaxed);
                std::future::pending().await
            }
        }
    }

    fn decide(&self, raw: &Raw) -> Verdict {
        let mut world = self.shared.lock();
        let ask = match route(raw, &world.catalogue) {
            Ok(Routed::Ask(ask)) => ask,
            Ok(Routed::Discovery) => {
                let answer = discovery::answer(&raw.path, &raw.accept, &world.catalogue);
                self.note(&mut world, raw, answer.as_ref().map(|_| 200).map_err(Clone::clone));
                let aggregated = raw.accept.contains("as=APIGroupDiscoveryList")
                    && matches!(raw.path.trim_matches('/'), "api" | "apis");
                let content_type = if aggregated {
                    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                } else {
                    JSON
                };
                return Verdict::Answer(match answer {
                    Ok(value) => respond(200, content_type, value.to_string()),
                    Err(refusal) => refuse(&refusal),
                });
            }
            Err(refusal) => {
                self.note(&mut world, raw, Err(refusal.clone()));
                return Verdict::Answer(refuse(&refusal));
            }
        };
        let trouble = world.faults.decide(&ask);
        let fault = trouble.map(Trouble::name);
        let unheard = |world: &mut World, outcome| world.record(&ask, outcome, false, fault);
        match trouble {
            None => Verdict::Answer(self.answer(&mut world, &ask, None)),
            Some(Trouble::Refused(code)) => {
                let refusal = faults::refused(code);
                unheard(&mut world, Err(refusal.clone()));
                Verdict::Answer(refuse(&refusal))
            }
            Some(Trouble::Unsent) => {
                unheard(&mut world, Ok(0));
                Verdict::Lose(Lost::Unsent, Duration::ZERO)
            }
            Some(Trouble::CrashBefore) => {
                unheard(&mut world, Ok(0));
                Verdict::Die
            }
            Some(Trouble::AnswerLost) => {
                self.answer(&mut world, &ask, fault);
                Verdict::Lose(Lost::Reset, Duration::ZERO)
            }
            Some(Trouble::TimedOut(after)) => {
                self.answer(&mut world, &ask, fault);
                Verdict::Lose(Lost::TimedOut, after)
            }
            Some(Trouble::CrashAfter) => {
                self.answer(&mut world, &ask, fault);
                Verdict::Die
            }
            Some(Trouble::Repeated) => {
                self.answer(&mut world, &ask, fault);
                Verdict::Answer(self.answer(&mut world, &ask, fault))
            }
            Some(Trouble::Stale(behind)) if ask.verb == Verb::List => {
                let version = world.storage.version().saturating_sub(behind).max(1);
                let reply = world.list_as_of(&ask, Some(version)).map(Reply::List);
                unheard(&mut world, reply.as_ref().map(Reply::code).map_err(Clone::clone));
                Verdict::Answer(self.render(&ask, reply))
            }
            Some(Trouble::Stale(_)) => Verdict::Answer(self.answer(&mut world, &ask, None)),
        }
    }

    /// A call that names no resource.
    fn note(&self, world: &mut World, raw: &Raw, outcome: Result<u16, Refusal>) {
        let target = Target { plural: raw.path.clone(), ..Target::default() };
        world.note(&self.user, Verb::NonResource, target, (String::new(), None), outcome, (false, None));
    }

    fn answer(&self, world: &mut World, ask: &Ask, fault: Option<&'static str>) -> Response<Answer> {
        let reply = world.ask_with(ask, fault);
        self.render(ask, reply)
    }

    fn render(&self, ask: &Ask, reply: Result<Reply, Refusal>) -> Response<Answer> {
        let (resource, version, partial) = (&ask.resource, ask.version.as_str(), ask.partial);
        match reply {
            Ok(Reply::Object { code, object }) => {
                respond(code, JSON, View::of(&object, resource, version, partial).to_vec())
            }
            Ok(Reply::Status(status)) => respond(200, JSON, status.to_string()),
            Ok(Reply::List(list)) => respond(200, JSON, view::list(&list, resource, version, partial)),
            Ok(Reply::Watch(spec)) => {
                let stream = WatchStream { shared: Arc::clone(&self.shared), spec, timers: None };
                build(200, JSON, Answer::Watch(Box::new(stream)))
            }
            Err(refusal) => refuse(&refusal),
        }
    }
}

const JSON: &str = "application/json";

fn refuse(refusal: &Refusal) -> Response<Answer> {
    match refusal {
        Refusal::Status { code, body } => respond(*code, JSON, body.to_string()),
        Refusal::NotServed => respond(404, "text/plain; charset=utf-8", NOT_SERVED),
    }
}

fn respond(code: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    build(code, content_type, Answer::Whole(Some(body.into())))
}

fn build(code: u16, content_type: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

/// The body of an answer.
pub(super) enum Answer {
    Whole(Option<Bytes>),
    Watch(Box<WatchStream>),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Watch(_) => "Watch",
        })
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Watch(stream) => stream.poll_next(cx),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A watch in progress.
pub(super) struct WatchStream {
    shared: Arc<Shared>,
    spec: WatchSpec,
    timers: Option<Timers>,
}

struct Timers {
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
}

impl WatchStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut lines = Vec::new();
        let mut world = self.shared.lock();
        let ends = loop {
            match world.next_event(&mut self.spec, cx.waker()) {
                Next::Event(event) => lines.extend(self.spec.line(&event)),
                Next::Wait => break false,
                Next::End => break true,
            }
        };
        if !lines.is_empty() {
            return Poll::Ready(Some(lines.into()));
        }
        if ends {
            return Poll::Ready(None);
        }
        let timeout = self.spec.timeout;
        let timers = self.timers.get_or_insert_with(|| Timers {
            end: Box::pin(tokio::time::sleep(timeout)),
            bookmark: Box::pin(tokio::time::sleep(BOOKMARK)),
        });
        if timers.bookmark.as_mut().poll(cx).is_ready() {
            timers.bookmark.as_mut().reset(Instant::now() + BOOKMARK);
            // Polled again to be woken for the next one.
            let _ = timers.bookmark.as_mut().poll(cx);
            if let Some(event) = world.bookmark(&mut self.spec) {
                return Poll::Ready(Some(self.spec.line(&event).into()));
            }
        }
        timers.end.as_mut().poll(cx).map(|()| None)
    }
}
