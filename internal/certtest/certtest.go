// Package certtest makes certificate authorities and certificates for tests. They are real but for their keys, which
// nobody keeps: what is made here is trusted by nobody who is not told to.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority of its own.
func NewCA(tb testing.TB, name string) *CA {
	tb.Helper()
	ca := &CA{key: newKey(tb)}
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	if err == nil {
		ca.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		tb.Fatalf("certtest: make a certificate authority: %v", err)
	}
	return ca
}

// PEM returns the authority's certificate.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Pair is a certificate and its private key, both in PEM.
type Pair struct{ Cert, Key []byte }

// Issue makes a certificate that both ends of a connection may show, until an hour from now. names are host names and
// addresses; the first is the subject too.
func (ca *CA) Issue(tb testing.TB, names ...string) Pair {
	tb.Helper()
	return ca.IssueUntil(tb, time.Now().Add(time.Hour), names...)
}

// IssueUntil is Issue with another end, which may have passed.
func (ca *CA) IssueUntil(tb testing.TB, end time.Time, names ...string) Pair {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: end.Add(-24 * time.Hour), NotAfter: end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		tb.Fatalf("certtest: issue a certificate: %v", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatalf("certtest: encode a key: %v", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// Write replaces a file by renaming, as whoever rotates certificates should, and returns its path.
func Write(tb testing.TB, dir, name string, data []byte) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		tb.Fatalf("certtest: %v", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatalf("certtest: %v", err)
	}
	return path
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("certtest: make a key: %v", err)
	}
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		tb.Fatalf("certtest: make a serial number: %v", err)
	}
	return n
}
