//! Kubeconfigs that somebody else wrote.

use kube_client::{
    Config,
    config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig},
};

use super::Unavailable;

/// The client configuration in a kubeconfig that is not the operator's own, such as the content of a tenant's Secret.
///
/// The current context counts. With this configuration the application builds a client as it builds its own, so TLS
/// stays its choice.
///
/// # Errors
/// [`Unavailable`], which quotes nothing of the kubeconfig, if it is not one, and if it wants more of the operator than
/// a connection:
/// - programs to run (`exec`, `auth-provider`): whoever may write the Secret would run them as the operator;
/// - files to read (`tokenFile`, `client-certificate`, `client-key`, `certificate-authority`): the file may be the
///   operator's own token, sent to a server of somebody's choosing.
pub async fn kubeconfig(text: &[u8]) -> Result<Config, Unavailable> {
    let unusable = |what: &str| Unavailable::new(format!("the kubeconfig {what}"));
    let text = std::str::from_utf8(text).map_err(|_| unusable("is not text"))?;
    let parsed = Kubeconfig::from_yaml(text).map_err(|_| unusable("is not a kubeconfig"))?;
    let clusters = parsed.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let users = parsed.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
    if let Some(field) = clusters.filter_map(reads).chain(users.filter_map(asks)).next() {
        return Err(unusable(&format!("uses {field}, which is not allowed: put the data itself into it")));
    }
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    config.map_err(|_| unusable("has no usable current context, cluster or user"))
}

/// The field by which a cluster asks for a file.
fn reads(cluster: &Cluster) -> Option<&'static str> {
    cluster.certificate_authority.as_ref().map(|_| "certificate-authority")
}

/// The field by which a user asks for a file or a program.
fn asks(user: &AuthInfo) -> Option<&'static str> {
    let fields = [
        (user.exec.is_some(), "exec"),
        (user.auth_provider.is_some(), "auth-provider"),
        (user.token_file.is_some(), "tokenFile"),
        (user.client_certificate.is_some(), "client-certificate"),
        (user.client_key.is_some(), "client-key"),
    ];
    fields.into_iter().find_map(|(asked, field)| asked.then_some(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://remote.example.com', {cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[tokio::test]
    async fn a_connection_with_a_token_is_read() {
        let config = kubeconfig(with("insecure-skip-tls-verify: true", "token: hunter2").as_bytes()).await.unwrap();
        assert_eq!(config.cluster_url.host(), Some("remote.example.com"));
        assert!(config.auth_info.token.is_some());
    }

    #[tokio::test]
    async fn programs_and_files_are_refused() {
        for (cluster, user, field) in [
            ("", "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true}", "exec"),
            ("", "auth-provider: {name: gcp}", "auth-provider"),
            ("", "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token", "tokenFile"),
            ("", "client-certificate: /etc/x", "client-certificate"),
            ("", "client-key: /etc/x", "client-key"),
            ("certificate-authority: /etc/x", "token: hunter2", "certificate-authority"),
        ] {
            let refused = kubeconfig(with(cluster, user).as_bytes()).await.unwrap_err().to_string();
            assert!(refused.contains(&format!("uses {field},")), "{refused}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_not_quoted() {
        for text in ["", "hunter2", "users: hunter2", "{", "current-context: hunter2", "clusters: [{name: [hunter2]}]"]
        {
            let refused = kubeconfig(text.as_bytes()).await.unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
        assert!(kubeconfig(&[0xff, 0xfe]).await.is_err());
    }
}
