//! The server's connections: requests in, answers out, and what goes wrong with either.

use std::{convert::Infallible, io, net::TcpStream as Socket, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use super::{Call, Route, Store, answer::Answer, fault::Effect};

/// No client has more to say.
const LARGEST_BODY: usize = 1 << 20;
/// How late a timed step of a script may be.
const TICK: Duration = Duration::from_millis(5);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

type Body = BoxBody<Bytes, io::Error>;

/// Serves until it is aborted, and with it end all connections.
pub(super) async fn serve(listener: TcpListener, store: Arc<Store>) {
    let mut tasks = JoinSet::new();
    let clock = Arc::clone(&store);
    tasks.spawn(async move {
        loop {
            sleep(TICK).await;
            clock.take_steps(None);
        }
    });
    loop {
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(tasks.spawn(connection(stream, Arc::clone(&store)))),
            // Too many files are open, say: some will be closed.
            Err(_) => sleep(TICK).await,
        }
    }
}

async fn connection(stream: TcpStream, store: Arc<Store>) {
    // A second handle of the same socket, by which a request can have its own connection reset.
    let Ok(socket) = stream.into_std() else { return };
    let Ok((stream, socket)) = socket.try_clone().and_then(|other| Ok((TcpStream::from_std(socket)?, Arc::new(other))))
    else {
        return;
    };
    // Small answers are not held back for the next ones.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| handle(Arc::clone(&store), Arc::clone(&socket), request));
    // What breaks here is what a fault breaks, or the client.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Closes the connection without answer, with an error for the other side.
fn reset(socket: &Socket) -> io::Error {
    // Whether this works makes the difference between a reset and an end, and both are no answer.
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    io::Error::from(io::ErrorKind::ConnectionReset)
}

async fn handle(store: Arc<Store>, socket: Arc<Socket>, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let mut call = read(request).await?;
    let (number, delay, effect) = store.receive(&mut call);
    if !delay.is_zero() {
        sleep(delay).await;
    }
    let answer = match &effect {
        Some(Effect::Hang) => std::future::pending().await,
        Some(Effect::Reset) => return Err(reset(&socket)),
        Some(Effect::Status(status, _)) => Answer::error(StatusCode::from_u16(*status).unwrap_or_default()),
        _ => store.answer(&call),
    };
    if let Some(Effect::Hold(delay)) = &effect {
        sleep(*delay).await;
    }
    let is_whole = matches!(effect, None | Some(Effect::Hold(_)));
    let is_lost = effect == Some(Effect::LoseAnswer);
    let told = if is_whole { answer.told.as_slice() } else { &[] };
    store.answered(number, (!is_lost).then_some(answer.status.as_u16()), told);
    store.take_steps(Some(call.route));
    if is_lost {
        return Err(reset(&socket));
    }
    Ok(response(answer, effect))
}

async fn read(request: Request<Incoming>) -> io::Result<Call> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(io::Error::other)?;
    let path = head.uri.path().to_owned();
    let (route, namespace_id, volume) = Route::find(&head.method, &path);
    let text = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    Ok(Call {
        route,
        namespace_id: namespace_id.map(Into::into),
        namespace: None,
        volume: volume.map(Into::into),
        query: head.uri.query().unwrap_or_default().to_owned(),
        token: text(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).map(Into::into),
        user_agent: text(USER_AGENT).map(Into::into),
        body: body.to_bytes().to_vec(),
        method: head.method,
        path,
    })
}

/// The answer as it goes out, with what a fault does to it.
fn response(answer: Answer, effect: Option<Effect>) -> Response<Body> {
    let Answer { status, headers, body, .. } = answer;
    let mut content_type = body.is_some().then_some(JSON);
    let mut text = body.unwrap_or_default().into_bytes();
    let mut is_broken = false;
    match effect {
        Some(Effect::Status(_, Some(body)) | Effect::Body(body)) => text = body.into_bytes(),
        Some(Effect::Truncate) => text.truncate(text.len() / 2),
        Some(Effect::ContentType(other)) => content_type = HeaderValue::try_from(other).ok(),
        Some(Effect::Break) => is_broken = true,
        _ => {}
    }
    let mut all = HeaderMap::from_iter(content_type.map(|value| (CONTENT_TYPE, value)));
    all.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
    all.extend(headers);
    let body = match text {
        text if text.is_empty() => Empty::new().map_err(never).boxed(),
        text if is_broken => broken(text),
        text => Full::from(text).map_err(never).boxed(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = all;
    response
}

/// The first half of it, and then the end of the connection.
fn broken(mut text: Vec<u8>) -> Body {
    text.truncate(text.len() / 2);
    let frames = stream::unfold(Some(text), async |rest| {
        let frame = match rest {
            Some(text) if !text.is_empty() => (Ok(Frame::data(Bytes::from(text))), Some(Vec::new())),
            _ => {
                // Lets the first half go out, which an error at once would take along.
                tokio::task::yield_now().await;
                (Err(io::Error::from(io::ErrorKind::ConnectionAborted)), None)
            }
        };
        Some(frame)
    });
    StreamBody::new(frames).boxed()
}

fn never(impossible: Infallible) -> io::Error {
    match impossible {}
}
