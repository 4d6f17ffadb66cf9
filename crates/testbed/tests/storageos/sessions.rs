//! Who may ask, and for how long.

use std::time::{Duration, Instant};

use anyhow::Result;
use http::{Method, StatusCode};
use serde_json::json;
use testbed::{
    eventually,
    storageos::{PASSWORD, StorageOs, TokenHeader, USERNAME},
};

use crate::{Client, ask, login};

#[tokio::test]
async fn a_login_gives_a_token_and_its_lifetime_in_header_and_body() -> Result<()> {
    let server = StorageOs::start().await?;
    let answer = login(&server, USERNAME, PASSWORD).await?;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("authorization-expires-seconds"), Some("300"));
    let body = answer.json()?;
    assert_eq!(body["session"], json!({ "expiresInSeconds": 300, "token": answer.token()? }));
    assert_eq!((&body["username"], &body["groups"]), (&json!(USERNAME), &json!(null)));
    assert_eq!(ask(&server, Method::GET, "/namespaces", Some(&answer.token()?), None).await?.json()?, json!([]));
    Ok(())
}

#[tokio::test]
async fn wrong_credentials_and_none_are_told_apart() -> Result<()> {
    let server = StorageOs::start().await?;
    for (username, password) in [(USERNAME, "wrong"), ("someone", PASSWORD)] {
        let answer = login(&server, username, password).await?;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answer.json()?, json!({ "error": "authentication required" }));
        assert_eq!(answer.header("authorization"), None);
    }
    for body in [json!({ "username": USERNAME }), json!([])] {
        let answer = ask(&server, Method::POST, "/auth/login", None, Some(body)).await?;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    }
    server.set_password("another");
    assert_eq!(login(&server, USERNAME, PASSWORD).await?.status, StatusCode::UNAUTHORIZED);
    assert_eq!(login(&server, USERNAME, "another").await?.status, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn nothing_but_the_login_is_open_without_a_token() -> Result<()> {
    let server = StorageOs::start().await?;
    let paths = ["/namespaces", "/namespaces/x/volumes", "/namespaces/x/volumes/y", "/nodes", "/nothing"];
    for path in paths {
        for token in [None, Some("made-up")] {
            let answer = ask(&server, Method::GET, path, token, None).await?;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path} with {token:?}");
            assert_eq!(answer.json()?, json!({ "error": "authentication required" }));
        }
    }
    assert_eq!(ask(&server, Method::POST, "/auth/refresh", None, None).await?.status, StatusCode::UNAUTHORIZED);
    Ok(())
}

#[tokio::test]
async fn a_token_is_refused_when_its_lifetime_is_over_even_for_a_refresh() -> Result<()> {
    let server = StorageOs::start().await?;
    let lifetime = Duration::from_secs(2);
    server.sessions(|sessions| sessions.lifetime = lifetime);
    let before = Instant::now();
    let client = Client::login(&server).await?;
    let first = client.get("/nodes").await?.status;
    assert!(first == StatusCode::OK || before.elapsed() >= lifetime, "it was never good");
    eventually("the token to expire", async || match client.get("/nodes").await?.status {
        StatusCode::UNAUTHORIZED => Ok(()),
        status => anyhow::bail!("{status}"),
    })
    .await?;
    assert!(before.elapsed() >= lifetime, "it expired after {:?}", before.elapsed());
    let refresh = ask(&server, Method::POST, "/auth/refresh", Some(&client.token), None).await?;
    assert_eq!(refresh.status, StatusCode::UNAUTHORIZED);
    Ok(())
}

#[tokio::test]
async fn a_refresh_gives_a_new_token_under_its_own_name_of_the_header() -> Result<()> {
    let server = StorageOs::start().await?;
    let client = Client::login(&server).await?;
    let answer = ask(&server, Method::POST, "/auth/refresh", Some(&client.token), None).await?;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("authorization-expires-in"), Some("300"));
    assert_eq!(answer.header("authorization-expires-seconds"), None);
    let renewed = answer.token()?;
    assert_ne!(renewed, client.token);
    assert_eq!(answer.json()?["session"]["token"], json!(renewed));
    for token in [&client.token, &renewed] {
        assert_eq!(ask(&server, Method::GET, "/nodes", Some(token), None).await?.status, StatusCode::OK);
    }
    Ok(())
}

#[tokio::test]
async fn a_logout_and_a_change_of_keys_end_all_tokens() -> Result<()> {
    let server = StorageOs::start().await?;
    let client = Client::login(&server).await?;
    let logout = ask(&server, Method::DELETE, "/users/self/sessions", Some(&client.token), None).await?;
    assert_eq!(logout.status, StatusCode::OK);
    assert_eq!(client.get("/nodes").await?.status, StatusCode::UNAUTHORIZED);
    let client = Client::login(&server).await?;
    server.expire_tokens();
    assert_eq!(client.get("/nodes").await?.status, StatusCode::UNAUTHORIZED);
    Ok(())
}

#[tokio::test]
async fn token_and_lifetime_can_be_left_out_where_a_client_would_look_for_them() -> Result<()> {
    let server = StorageOs::start().await?;
    server.sessions(|sessions| {
        (sessions.token_header, sessions.lifetime_in_body) = (TokenHeader::Missing, false);
    });
    let answer = login(&server, USERNAME, PASSWORD).await?;
    assert_eq!(answer.header("authorization"), None);
    assert_eq!(answer.header("authorization-expires-seconds"), Some("300"));
    let session = answer.json()?["session"].clone();
    assert!(session["token"].is_string() && session.get("expiresInSeconds").is_none(), "{session}");

    server.sessions(|sessions| {
        (sessions.token_header, sessions.token_in_body) = (TokenHeader::Bare, false);
        (sessions.lifetime_in_header, sessions.lifetime_in_body) = (false, true);
    });
    let answer = login(&server, USERNAME, PASSWORD).await?;
    let bare = answer.header("authorization").unwrap_or_default();
    assert!(!bare.is_empty() && !bare.contains(' '), "{bare}");
    assert_eq!(answer.header("authorization-expires-seconds"), None);
    assert_eq!(answer.json()?["session"], json!({ "expiresInSeconds": 300 }));
    assert_eq!(ask(&server, Method::GET, "/nodes", Some(bare), None).await?.status, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn the_secret_has_what_the_server_takes_and_can_be_rotated_apart() -> Result<()> {
    let server = StorageOs::start().await?;
    let read = |name: &str| std::fs::read_to_string(server.secret_path().join(name));
    assert_eq!(login(&server, &read("username")?, &read("password")?).await?.status, StatusCode::OK);
    server.write_secret(USERNAME, "another")?;
    assert_eq!(login(&server, &read("username")?, &read("password")?).await?.status, StatusCode::UNAUTHORIZED);
    Ok(())
}
