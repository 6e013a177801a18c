"""Certificates of a test cluster: one authority, and the identity of each component.

Kubernetes takes a user's name from a certificate's common name, and the group from its
organisation.
"""

import base64
from collections.abc import Mapping
from pathlib import Path

import trustme
import yaml


class CertificateAuthority:
    """The authority, with its files in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.certificate = directory / "ca.crt"
        self._ca.cert_pem.write_to_path(self.certificate)

    def server(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Return certificate and key of a server at *hosts* (names and addresses)."""
        return self._issue(name, self._ca.issue_cert(*hosts))

    def client(self, user: str, group: str = "") -> tuple[Path, Path]:
        """Return certificate and key of *user*, a member of *group*."""
        # Kubernetes ignores a client's host name, but Go refuses a certificate without one.
        leaf = self._ca.issue_cert("client.test", common_name=user, organization_name=group or None)
        return self._issue(user.replace(":", "-"), leaf)

    def signing_key(self, name: str) -> Path:
        """Return a private key for signing tokens; its certificate is not used."""
        return self.server(name, name)[1]

    def kubeconfig(self, url: str, user: str, group: str = "") -> Path:
        """Return a kubeconfig file with which *user* reaches the API server at *url*; created
        once."""
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        if path.exists():
            return path
        certificate, key = self.client(user, group)
        credentials = {"client-certificate": str(certificate), "client-key": str(key)}
        path.write_text(self.kubeconfig_text(url, user, credentials))
        return path

    def kubeconfig_text(self, url: str, user: str, credentials: Mapping[str, str]) -> str:
        """Return the text of a kubeconfig file for *user* with these *credentials*."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": url, "certificate-authority-data": authority}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": dict(credentials)}],
            }
        )

    def _issue(self, name: str, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.unlink(missing_ok=True)
        for pem in leaf.cert_chain_pems:
            pem.write_to_path(certificate, append=True)
        leaf.private_key_pem.write_to_path(key)
        key.chmod(0o600)
        return certificate, key
