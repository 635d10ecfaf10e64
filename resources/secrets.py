"""Takes credentials from AWS Secrets Manager."""

from __future__ import annotations

import json
import os

# Name or ARN of a secret: a JSON object of environment variables, as the console of AWS stores keys and values.
SECRET = "SECRETS_MANAGER_SECRET"


def secret_to_environment() -> None:
    """Set the variables of the secret that the environment names, for this process and those that it starts.

    Variables that are already set keep their values. boto3 finds the region and the permission to read the secret.

    Raises:
        ValueError: the secret is not a JSON object of strings. The message holds nothing of its content.
        botocore.exceptions.ClientError: the secret cannot be read.
    """
    name = os.environ.get(SECRET)
    if not name:
        return
    from dagster_aws.secretsmanager import SecretsManagerResource  # imports boto3

    text = SecretsManagerResource().get_client().get_secret_value(SecretId=name).get("SecretString", "")
    try:
        variables = json.loads(text)
    except ValueError:
        variables = None
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise ValueError(f"the secret in ${SECRET} is not a JSON object of strings")
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)
