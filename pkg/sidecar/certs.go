package sidecar

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"time"
)

// certFiles are the PEM files of one end of TLS; "" is none. cert and key go
// together.
type certFiles struct{ ca, cert, key string }

// certs are what one end of TLS trusts and shows.
type certs struct {
	trusted *x509.CertPool   // nil: whom the system trusts
	own     *tls.Certificate // nil: it shows none
}

// expires is when the end's own certificate does, zero without one.
func (c *certs) expires() time.Time {
	if c.own == nil {
		return time.Time{}
	}
	return c.own.Leaf.NotAfter
}

// newCerts follows the files; section is that of their settings ca_file,
// cert_file and key_file, as store.tls. It returns nil without any file.
func newCerts(section string, names certFiles) (*material[*certs], error) {
	if (names.cert == "") != (names.key == "") {
		f := Fault{Path: section + ".key_file", Problem: "required with " + section + ".cert_file", Mend: "name the private key of the certificate"}
		if names.cert == "" {
			f = Fault{Path: section + ".cert_file", Problem: "required with " + section + ".key_file", Mend: "name the certificate of the private key"}
		}
		return nil, f
	}
	var files []materialFile
	add := func(name, path string) int {
		if path == "" {
			return -1
		}
		files = append(files, materialFile{section + "." + name, path})
		return len(files) - 1
	}
	ca, cert, key := add("ca_file", names.ca), add("cert_file", names.cert), add("key_file", names.key)
	if len(files) == 0 {
		return nil, nil
	}
	return newMaterial(section, files, func(contents [][]byte) (*certs, error) {
		c := &certs{}
		var err error
		if ca >= 0 {
			if c.trusted, err = parsePool(contents[ca]); err != nil {
				return nil, files[ca].fault(err, "")
			}
		}
		if cert < 0 {
			return c, nil
		}
		if err := certificatesOnly(contents[cert]); err != nil {
			return nil, files[cert].fault(err, "")
		}
		pair, err := tls.X509KeyPair(contents[cert], contents[key])
		if err != nil {
			return nil, files[key].fault(err, "name the unencrypted PEM key that belongs to "+section+".cert_file")
		}
		c.own = &pair
		return c, nil
	})
}

// parsePool returns the certificates of a PEM file. Unlike x509's own, it does
// not pass over a damaged one: its issuer would be refused, and nobody told why.
func parsePool(data []byte) (*x509.CertPool, error) {
	if err := certificatesOnly(data); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data)
	return pool, nil
}

// certificatesOnly says what is wrong with a PEM file of certificates. Other
// blocks, as a key that stands in the same file, do not matter.
func certificatesOnly(data []byte) error {
	found := false
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return &wrong{"a certificate that cannot be read: " + err.Error(), "write it again from where it came"}
		}
		found = true
	}
	if !found {
		return &wrong{"no certificate", "name a file of certificates in PEM, which begin with -----BEGIN CERTIFICATE-----"}
	}
	return nil
}
