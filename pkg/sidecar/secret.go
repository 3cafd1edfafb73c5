package sidecar

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// maxSecret bounds what is read of a secret file: it is a mistyped path when
// it is larger.
const maxSecret = 64 << 10

// readSecret returns the content of store.secret_file without one line end at
// its end, and a warning about its permissions.
func readSecret(path string) (secret, warning string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", "", err
	}
	if !info.Mode().IsRegular() { // Opening a pipe could wait for ever.
		return "", "", &wrong{"not a file", "name a file that holds the secret"}
	}
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", "", err
	}
	if len(data) > maxSecret {
		return "", "", &wrong{fmt.Sprintf("larger than %d bytes", maxSecret), "name a file that holds only the secret"}
	}
	// An editor or echo adds one line end; every other byte is the secret's.
	if line, ok := bytes.CutSuffix(data, []byte("\n")); ok {
		data = bytes.TrimSuffix(line, []byte("\r"))
	}
	if len(data) == 0 {
		return "", "", &wrong{"an empty secret", "write one into the file, or unset store.secret_file"}
	}
	if info.Mode().Perm()&0o007 != 0 {
		warning = fmt.Sprintf("%s is open to every user (%04o); set 0640 or less", path, info.Mode().Perm())
	}
	return string(data), warning, nil
}
