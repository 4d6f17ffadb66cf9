package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"time"
)

// userCertificate prints a client certificate and its key for a user and any number of groups:
//
//	user-certificate CA.CRT CA.KEY USER [GROUP...]
//
// It is done here because the Rust side's certificate library can't put several organizations (groups) into one name.
func userCertificate() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: controlplane user-certificate CA.CRT CA.KEY USER [GROUP...]")
		os.Exit(2)
	}
	if err := printUserCertificate(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "user-certificate:", err)
		os.Exit(1)
	}
}

func printUserCertificate(caCertificate, caKey, user string, groups []string) error {
	ca, err := tls.LoadX509KeyPair(caCertificate, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := pem.Encode(os.Stdout, &pem.Block{Type: "CERTIFICATE", Bytes: certificate}); err != nil {
		return err
	}
	return pem.Encode(os.Stdout, &pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes})
}
