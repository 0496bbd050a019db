from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Visit",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("patient", models.CharField(max_length=100)),
                ("is_confirmed", models.BooleanField(default=False)),
                ("reminders", models.IntegerField(default=0)),
            ],
        ),
    )
