package sidecar

import (
	"bytes"
	"fmt"
)

// maxSecret bounds what is read of a secret file: it is a mistyped path when
// it is larger.
const maxSecret = 64 << 10

// readSecret returns the content of store.secret_file without one line end at
// its end, and a warning about its permissions.
func readSecret(path string) (secret, warning string, err error) {
	data, info, err := readFile(path, maxSecret)
	if err != nil {
		return "", "", err
	}
	if secret, err = trimSecret(data); err != nil {
		return "", "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		warning = fmt.Sprintf("%s is open to every user (%04o); set 0640 or less", path, info.Mode().Perm())
	}
	return secret, warning, nil
}

// trimSecret takes one line end away, which an editor or echo adds; every other
// byte is the secret's.
func trimSecret(data []byte) (string, error) {
	if line, ok := bytes.CutSuffix(data, []byte("\n")); ok {
		data = bytes.TrimSuffix(line, []byte("\r"))
	}
	if len(data) == 0 {
		return "", &wrong{"an empty secret", "write one into the file, or unset the setting"}
	}
	return string(data), nil
}
